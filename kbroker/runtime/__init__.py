"""Thin adapters that run the machines against disk, ZooKeeper and peers."""
