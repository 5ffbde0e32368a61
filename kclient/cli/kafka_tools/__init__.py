"""`kclient kafka-topics` and the other tools of Apache Kafka 3.9: Kafka's options, output and exit codes.

Each tool is a module with a `Tool`: its options, those that are refused with the reason, and what differs. The table
of docs/kafka-tools.md comes from there.
"""
