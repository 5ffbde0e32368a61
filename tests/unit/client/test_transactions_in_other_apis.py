"""Transactions of the blocking and the asyncio producer, on scripted brokers but in real time."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from kclient.blocking import Producer
from kclient.blocking.thread import reactor_thread
from kclient.errors import TransactionAborted, TransactionStateError
from kclient.types import ConsumerGroupMetadata, TopicPartition
from kclient.wire.errors import ErrorCode, MessageTooLarge
from kclient.wire.versions import ApiKey
from tests.kit.scripted_cluster import ScriptedCluster
from tests.kit.scripted_transaction_coordinator import ScriptedTransactionCoordinator


class BlockingProducer:
    """A blocking producer on scripted brokers."""

    def __init__(self) -> None:
        self.scripted = ScriptedCluster({"t": 1})
        self.scripted.clock = reactor_thread().reactor
        self.codes = ScriptedTransactionCoordinator(self.scripted).codes
        self.producer: Producer[Any, Any] = Producer(transactional_id="tx", linger_ms=1)
        self.scripted.attach(self.producer._core.cluster)
        self.producer.init_transactions()

    def ends(self) -> list[bool]:
        """Return how the transactions ended: whether each was committed."""
        return [a.message.committed for a in self.scripted.requests if a.api is ApiKey.END_TXN]


def test_a_block_commits_records_and_offsets() -> None:
    it = BlockingProducer()
    with it.producer.transaction():
        sent = it.producer.send("t", b"v", partition=0)
        it.producer.send_offsets_to_transaction(
            {TopicPartition("t", 0): 5}, ConsumerGroupMetadata("g")
        )
    assert sent.result(5).offset == 0
    assert it.ends() == [True]
    it.producer.close()


def test_an_exception_of_a_block_aborts_and_is_raised() -> None:
    it = BlockingProducer()

    def work() -> None:
        with it.producer.transaction():
            it.producer.send("t", b"v", partition=0).result(5)
            raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program"):
        work()
    assert it.ends() == [False]
    with it.producer.transaction():
        it.producer.send("t", b"v", partition=0).result(5)
    assert it.ends()[-1] is True
    it.producer.close()


def test_a_failed_record_aborts_the_block_at_its_end() -> None:
    it = BlockingProducer()
    it.codes[ApiKey.PRODUCE] = [ErrorCode.INVALID_RECORD]
    with pytest.raises(TransactionAborted), it.producer.transaction():
        it.producer.send("t", b"v", partition=0)
    assert it.ends() == [False]
    it.producer.close()


def test_a_record_that_send_refuses_fails_the_transaction() -> None:
    it = BlockingProducer()
    it.producer.begin_transaction()
    it.producer.send("t", b"v", partition=0).result(5)
    with pytest.raises(MessageTooLarge):
        it.producer.send("t", b"x" * 2_000_000, partition=0)
    with pytest.raises(TransactionAborted):
        it.producer.commit_transaction()
    it.producer.abort_transaction()
    assert it.ends() == [False]
    it.producer.close()


def test_wrong_use_is_refused_in_the_callers_thread() -> None:
    it = BlockingProducer()
    with pytest.raises(TransactionStateError, match=r"begin_transaction\(\) first"):
        it.producer.send("t", b"v", partition=0)
    with pytest.raises(TransactionStateError, match=r"begin_transaction\(\) first"):
        it.producer.commit_transaction()
    it.producer.close()


ASYNCIO = """
import asyncio
from kclient import aio
from kclient.wire.versions import ApiKey
from tests.kit.scripted_cluster import ScriptedCluster
from tests.kit.scripted_transaction_coordinator import ScriptedTransactionCoordinator

async def main():
    producer = aio.Producer(transactional_id="tx", linger_ms=1)
    scripted = ScriptedCluster({"t": 1})
    scripted.clock = producer._core.cluster.reactor
    ScriptedTransactionCoordinator(scripted)
    scripted.attach(producer._core.cluster)
    await producer.init_transactions()
    async with producer.transaction():
        await producer.send("t", b"v", partition=0)
    try:
        async with producer.transaction():
            await producer.send("t", b"v", partition=0)
            producer.send("t", b"not awaited", partition=0)
            raise ValueError
    except ValueError:
        print([a.message.committed for a in scripted.requests if a.api is ApiKey.END_TXN])
    await producer.close()

asyncio.run(main())
"""


def test_a_block_of_asyncio_commits_or_aborts() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ASYNCIO], capture_output=True, text=True, timeout=30, check=False
    )
    assert (ran.stdout, ran.stderr) == ("[True, False]\n", "")
