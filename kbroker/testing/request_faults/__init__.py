"""Errors, delays and lost connections that a test asks for, by API: a part of the brokers of a `KafkaCluster`.

    the test's process                         each broker's process
    KafkaCluster.fail_requests(...)            FaultyService, between the socket server and the request pipeline
            |                                          |
            v                                          v
    FaultPlan.replace  --->  a file in the cluster's directory  --->  FaultPlan.claim, for each request of a client

The file is mapped into memory by all of them. So a request without a fault costs a comparison of two numbers, and a
fault counts over all brokers. A fault of a broker that restarts goes on.
"""

PROGRAM = "kbroker.testing.request_faults"
