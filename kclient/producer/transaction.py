"""One transaction as a block: committed at its end, aborted if an exception leaves it."""

from __future__ import annotations

from typing import Any

from kclient.errors import TransactionAborted
from kclient.wire.errors import KafkaError


class Transaction:
    """What `Producer.transaction` returns.

        async with producer.transaction():
            await producer.send("orders", b"value")

    An exception of the block aborts and is raised. So does a commit that fails. A commit that times out raises
    KafkaTimeoutError: its outcome is open, and `Producer.commit_transaction` waits for it again.
    """

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    async def __aenter__(self) -> None:
        await self._producer.begin_transaction()

    async def __aexit__(self, kind: object, problem: BaseException | None, *rest: object) -> None:
        if problem is not None:
            await self._abort(problem)
            return
        try:
            await self._producer.commit_transaction()
        except TransactionAborted as failed:
            await self._abort(failed)
            raise

    async def _abort(self, because: BaseException) -> None:
        try:
            await self._producer.abort_transaction()
        except KafkaError as failed:
            because.add_note(f"abort_transaction() failed, too: {failed}")


class BlockingTransaction:
    """`Transaction` of the blocking API."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def __enter__(self) -> None:
        self._producer.begin_transaction()

    def __exit__(self, kind: object, problem: BaseException | None, *rest: object) -> None:
        if problem is not None:
            self._abort(problem)
            return
        try:
            self._producer.commit_transaction()
        except TransactionAborted as failed:
            self._abort(failed)
            raise

    def _abort(self, because: BaseException) -> None:
        try:
            self._producer.abort_transaction()
        except KafkaError as failed:
            because.add_note(f"abort_transaction() failed, too: {failed}")
