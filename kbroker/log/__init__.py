"""The log: Kafka's own files on disk, segment by segment, and what survives a crash of the broker.

`unified_log` is one partition's log, `log_manager` the directories that hold many of them. Every call to the operating
system goes through `disk`. So a simulation can lose what was not synced and a test can make any call fail. Nothing here
imports Twisted: what is slow is a plain function that the caller runs in a pool, and the docstrings name them.
"""
