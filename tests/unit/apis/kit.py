"""Requests as bytes into the pipeline of one broker, responses out; the clock is turned by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kbroker.apis.request import HandlerFactory
from kbroker.log.slices import FileSlice
from kbroker.network.service import Peer
from kclient.wire import fetch, messages, produce
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.messages import RequestHeader
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.versions import ApiKey
from tests.kit.logs import batch_of
from tests.kit.one_broker import OneBroker

PEER = Peer("10.0.0.1", 1234, "PLAINTEXT")


def sender_of(request: Any) -> Peer:
    """Return a peer that may send *request*: one that proved to be the broker of its replica id, if it has one."""
    return Peer("10.0.0.1", 1234, "PLAINTEXT", broker_id=getattr(request, "replica_id", -1))


class TestReactor(Clock):
    """A clock that takes calls from threads at once; nothing here uses one."""

    __test__ = False

    def callFromThread(self, call: Callable[..., Any], *args: Any) -> None:  # noqa: N802
        call(*args)


class ApiBroker(OneBroker):
    """One broker that is asked without a socket."""

    def __init__(
        self, directory: Path, settings: dict[str, str] | None = None, **parts: Any
    ) -> None:
        self.clock = TestReactor()
        super().__init__(self.clock, str(directory), settings, **parts)
        self.replica_manager.log_manager.load()
        self._update()

    def serve(self, api: ApiKey, factory: HandlerFactory) -> None:
        """Serve *api* by the handler that *factory* makes."""
        self.handlers[api] = factory
        self.pipeline = self.make_pipeline()

    def ask_raw(self, frame: bytes, peer: Peer = PEER) -> Any:
        """Return what the pipeline returns: parts, None or a Deferred."""
        return self.pipeline(memoryview(frame), peer)

    def ask(
        self,
        api: int,
        version: int,
        request: object,
        client_id: str | None = "c",
        *,
        peer: Peer | None = None,
    ) -> Any:
        """Return the decoded response; *peer* None: one that may send the request."""
        header = RequestHeader(api, version, 7, client_id)
        answer = self.ask_raw(messages.encode_request(header, request), peer or sender_of(request))
        correlation_id, response = messages.decode_response(api, version, joined(answer))
        assert correlation_id == 7
        return response

    def produce(
        self,
        *batches: bytes | None,
        topic: str = "t",
        acks: int = 1,
        version: int = 9,
        timeout_ms: int = 1000,
        transactional_id: str | None = None,
    ) -> Any:
        """Produce one batch to each of partitions 0, 1, ...; return the outcomes, or a Deferred."""
        partitions = [ProducePartition(index, batch) for index, batch in enumerate(batches)]
        request = ProduceRequest(
            acks, timeout_ms, [ProduceTopic(topic, partitions)], transactional_id
        )
        answer = self.ask_raw(b"".join(produce.encode_request(request, version, 7, "c")))

        def decode(parts: Any) -> Any:
            return produce.decode_response(joined(parts), version)[1].topics[0].partitions

        if isinstance(answer, Deferred):
            return answer.addCallback(decode)
        return None if answer is None else decode(answer)

    def fetch(
        self,
        *partitions: FetchPartition,
        topic: str = "t",
        version: int = 12,
        topic_id: Any = None,
        peer: Peer | None = None,
        **fields: Any,
    ) -> Any:
        """Fetch; return the response, or a Deferred of it. *peer* None: one that may fetch so."""
        request = FetchRequest(
            **{
                "max_wait_ms": 0,
                "min_bytes": 1,
                "topics": [FetchTopic(topic, list(partitions), topic_id)],
                **fields,
            }
        )
        answer = self.ask_raw(
            fetch.encode_request(request, version, 7, "c"), peer or sender_of(request)
        )

        def decode(parts: Any) -> Any:
            return fetch.decode_response(joined(parts), version)[1]

        return answer.addCallback(decode) if isinstance(answer, Deferred) else decode(answer)

    def fill(self, *counts: int, topic: str = "t") -> None:
        """Lead *topic* with a partition per count, and put so many one-record batches into each."""
        assert self.lead(topic, len(counts)) == [0] * len(counts)
        for index, count in enumerate(counts):
            for _ in range(count):
                self.replica_manager.partition(topic, index).append(batch_of(1000), 1, 1000)


def joined(parts: Any) -> memoryview:
    """Return the bytes of an answer, its file slices read; wait for one that a thread of the pool has to give."""
    if isinstance(parts, Deferred):
        deadline = time.monotonic() + 10
        while not parts.called and time.monotonic() < deadline:
            time.sleep(0.001)
        assert parts.called, "not answered"
        parts = parts.result
    return memoryview(
        b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in parts)
    )


@contextmanager
def broker_in(
    directory: Path, settings: dict[str, str] | None = None, **parts: Any
) -> Iterator[ApiBroker]:
    """Give a broker with its logs in *directory*; *parts* are its disk and its pool, where they matter."""
    broker = ApiBroker(directory, settings, **parts)
    try:
        yield broker
    finally:
        broker.disk_pool.shutdown()
        broker.replica_manager.log_manager.close()
