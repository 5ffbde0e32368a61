"""What the broker knows and changes of the cluster: metadata cache, topics, dynamic configuration, registration."""
