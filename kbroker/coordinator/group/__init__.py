"""The group coordinator: requests of members and committing clients, offsets in ZooKeeper, loading and unloading."""
