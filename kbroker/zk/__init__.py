"""ZooKeeper, the one truth of the control plane: its znodes, our session, our errors."""
