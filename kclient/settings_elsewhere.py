"""Settings of librdkafka, kafka-python and aiokafka that have another name here, or none: what to write instead.

An error about an unknown setting has this advice. Without it the nearest name is suggested, which for
message.timeout.ms is session.timeout.ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ADVICE: Final[Mapping[str, str]] = {
    "api.version": "leave it out: versions are negotiated with each broker",
    "api.version.request": "leave it out: versions are negotiated with each broker",
    "batch.num.messages": "a batch is limited by batch.size, in bytes",
    "broker.address.family": "leave it out: all addresses of a name are tried",
    "broker.version.fallback": "leave it out: versions are negotiated with each broker",
    "compression.codec": "write compression.type",
    "consumer.timeout.ms": "poll(timeout=...) returns nothing after that time",
    "debug": "set the level of the logger kclient to DEBUG",
    "default.topic.config": "write its settings beside the others",
    "enable.partition.eof": "compare position() with end_offsets(), or see lag()",
    "error.cb": "calls raise errors, and logging has the rest",
    "fetch.error.backoff.ms": "write retry.backoff.ms",
    "fetch.message.max.bytes": "write max.partition.fetch.bytes",
    "fetch.wait.max.ms": "write fetch.max.wait.ms",
    "group.protocol": "leave it out: groups have the classic protocol",
    "log.level": "set the level of the logger kclient",
    "logger": "the logger is kclient, of the module logging",
    "loop": "leave it out: a client uses the event loop in which it is created",
    "max.batch.size": "write batch.size",
    "max.in.flight": "write max.in.flight.requests.per.connection",
    "message.max.bytes": "write max.request.size",
    "message.send.max.retries": "write retries",
    "message.timeout.ms": "write delivery.timeout.ms",
    "metadata.broker.list": "write bootstrap.servers",
    "on.commit": "give commit_async a callback",
    "on.delivery": "give produce the argument on_delivery",
    "partitioner": "give the producer the argument partitioner; by default keys are hashed as in Java",
    "queue.buffering.max.kbytes": "write buffer.memory, in bytes",
    "queue.buffering.max.messages": "the buffer is limited by buffer.memory, in bytes",
    "queue.buffering.max.ms": "write linger.ms",
    "queued.max.messages.kbytes": "write fetch.max.bytes, in bytes",
    "queued.min.messages": "leave it out: the consumer fetches up to fetch.max.bytes ahead",
    "rebalance.cb": "give subscribe the arguments on_assign and on_revoke",
    "request.required.acks": "write acks",
    "socket.keepalive.enable": "leave it out: connections have keep-alive",
    "socket.nagle.disable": "leave it out: Nagle's algorithm is off",
    "socket.timeout.ms": "write request.timeout.ms",
    "statistics.interval.ms": "call metrics()",
    "stats.cb": "call metrics()",
    "topic.metadata.refresh.interval.ms": "write metadata.max.age.ms",
}
"""By name, with dots for underscores."""
