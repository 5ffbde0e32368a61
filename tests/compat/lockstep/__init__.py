"""The same random requests to a kbroker and to an Apache Kafka broker, at the same time; the answers are compared.

    python -m tests.compat.lockstep --seed 7 --requests 1000
    python -m tests.compat.lockstep --seed 7 --requests 200 --api JOIN_GROUP --api SYNC_GROUP

`drawing` makes requests from the schemas: mostly sensible ones, of topics, groups and transactions that exist, and some
that are wrong. What each cluster has of its own (ids, addresses, the time) is a `Symbol` in the request and a name in
the answer (`side`). `known` has the differences that are meant, each with its reason. All others are printed, and fail
the test.

Left out: requests between brokers, and what is compared elsewhere (Produce and Fetch: `test_refused_batches`,
`test_java_transactions`, `test_kafka_reads_our_log`).
"""
