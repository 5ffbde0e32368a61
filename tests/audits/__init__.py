"""Audits of a stopped cluster: partition logs, ZooKeeper's transaction log, and the brokers' log files.

The checker uses the responses that clients received. The audits use the disks, and find what no client has met
yet: replicas that differ, an epoch that went back, a state that a deposed controller wrote.
"""

from tests.audits.problem import Problem

__all__ = ["Problem"]
