"""The group coordinator: requests of members and committers, offsets in ZooKeeper, takeover of groups."""
