"""ZooKeeper, the truth of the control plane: the client with its session and errors, and every znode."""
