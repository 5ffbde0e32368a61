"""Consumer groups as machines: membership, generations, assignments and committed offsets.

Nothing in here does I/O or reads a clock. `kbroker.runtime.group_coordinator` feeds the machines
with requests, time and ZooKeeper's answers, and performs what they ask for.
"""
