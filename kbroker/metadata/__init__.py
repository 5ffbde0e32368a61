"""What the broker knows of the cluster, and changes: metadata cache, topics, settings, registration, epoch fences."""
