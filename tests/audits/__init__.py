"""What can be seen from inside once a cluster has stopped: its logs, ZooKeeper's journal, its words.

The checker goes by what clients were told. These go by what is on the disks, and so find what no client has run into
yet: replicas that differ, an epoch that went back, a state that a deposed controller wrote.
"""

from tests.audits.problem import Problem

__all__ = ["Problem"]
