"""A coordinator that was replaced and does not know it: nothing that it remembers is answered (S30, S31)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_twisted
from kazoo.protocol.serialization import Transaction
from twisted.internet.defer import ensureDeferred, gatherResults

from kbroker.coordinator.group.core.effects import MemberIdentity
from kclient.wire.error_codes import ErrorCode
from tests.kit.coordinators import CoordinatingBroker, Open, error_of, stable
from tests.kit.groups import join_request
from tests.simulation.mutants import planted

pytestmark = pytest.mark.slow

OF_G = {"member_id": "a-id", "generation_id": 2}


@pytest_twisted.async_yield_fixture
async def deposed(open_broker: Open) -> AsyncIterator[CoordinatingBroker]:
    """Give the coordinator of g (members a and b, generation 2), replaced by one that committed 5000 over 10."""
    old, new = await open_broker(1), await open_broker(2)
    await old.lead(0)
    await stable(old)
    await old.commit({"t": {0: 10}}, **OF_G)
    assert await old.offsets() == {"t": {0: 10}}
    await new.lead(1)
    assert await new.commit({"t": {0: 5000}}, **OF_G) == [ErrorCode.NONE]
    assert old.acts_as_coordinator
    forget_confirmations(old)
    yield old


def forget_confirmations(old: CoordinatingBroker) -> None:
    """Make the last confirmation as old as after a pause: it answers no heartbeat."""
    for shard in old.coordinator._shards.partitions.values():
        shard.fence.confirmed_at = float("-inf")


async def _join(old: CoordinatingBroker) -> ErrorCode:
    return (await old.join("b", "b-id")).error


async def _join_of_a_stranger(old: CoordinatingBroker) -> ErrorCode:
    return (await old.join("c", "c-id")).error


async def _join_of_a_new_group(old: CoordinatingBroker) -> ErrorCode:
    return (await old.join("c", "c-id", group="other")).error


async def _join_of_a_static_member(old: CoordinatingBroker) -> ErrorCode:
    static = {"requires_known_member_id": False, "group_instance_id": "i"}
    return (await old.coordinator.join("g", join_request("s", **static))).error


async def _sync(old: CoordinatingBroker) -> ErrorCode:
    return (await old.sync("b", 2)).error


async def _sync_of_the_next_generation(old: CoordinatingBroker) -> ErrorCode:
    return (await old.sync("b", 3)).error


async def _heartbeat(old: CoordinatingBroker) -> ErrorCode:
    return await old.heartbeat("b", 2)


async def _heartbeat_of_the_next_generation(old: CoordinatingBroker) -> ErrorCode:
    return await old.heartbeat("b", 3)


async def _heartbeat_of_a_stranger(old: CoordinatingBroker) -> ErrorCode:
    return await old.heartbeat("c", 2)


async def _offset_fetch(old: CoordinatingBroker) -> ErrorCode:
    return await error_of(old.coordinator.offsets("g"))


async def _offset_fetch_of_a_new_group(old: CoordinatingBroker) -> ErrorCode:
    return await error_of(old.coordinator.offsets("other"))


async def _describe(old: CoordinatingBroker) -> ErrorCode:
    return await error_of(old.coordinator.describe("g"))


async def _describe_of_a_new_group(old: CoordinatingBroker) -> ErrorCode:
    return await error_of(old.coordinator.describe("other"))


async def _leave_of_a_stranger(old: CoordinatingBroker) -> ErrorCode:
    return (await old.coordinator.leave("g", [MemberIdentity("c-id")])).error


async def _leave_of_a_new_group(old: CoordinatingBroker) -> ErrorCode:
    return (await old.coordinator.leave("other", [MemberIdentity("c-id")])).error


async def _commit(old: CoordinatingBroker) -> ErrorCode:
    return (await old.commit({"t": {0: 11}}, **OF_G))[0]


async def _commit_of_the_next_generation(old: CoordinatingBroker) -> ErrorCode:
    identity = {"member_id": "a-id", "group_instance_id": None, "generation_id": 3}
    return (await old.commit({"t": {0: 11}}, **identity))[0]


async def _offset_delete(old: CoordinatingBroker) -> ErrorCode:
    return await error_of(old.coordinator.delete_offsets("g", [("t", 7)]))


async def _offset_delete_of_a_new_group(old: CoordinatingBroker) -> ErrorCode:
    return await error_of(old.coordinator.delete_offsets("other", [("t", 7)]))


async def _delete(old: CoordinatingBroker) -> ErrorCode:
    return await error_of(old.coordinator.delete("g"))


async def _delete_of_a_new_group(old: CoordinatingBroker) -> ErrorCode:
    return await error_of(old.coordinator.delete("other"))


@pytest.mark.parametrize(
    "ask",
    [
        _join,
        _join_of_a_stranger,
        _join_of_a_static_member,
        _join_of_a_new_group,
        _sync,
        _sync_of_the_next_generation,
        _heartbeat,
        _heartbeat_of_the_next_generation,
        _heartbeat_of_a_stranger,
        _offset_fetch,
        _offset_fetch_of_a_new_group,
        _describe,
        _describe_of_a_new_group,
        _leave_of_a_stranger,
        _leave_of_a_new_group,
        _commit,
        _commit_of_the_next_generation,
        _offset_delete,
        _offset_delete_of_a_new_group,
        _delete,
        _delete_of_a_new_group,
    ],
    ids=lambda ask: ask.__name__.lstrip("_"),
)
@pytest_twisted.ensureDeferred
async def test_a_deposed_coordinator_answers_that_it_is_none(
    deposed: CoordinatingBroker, ask: Callable[[CoordinatingBroker], Awaitable[ErrorCode]]
) -> None:
    assert await ask(deposed) is ErrorCode.NOT_COORDINATOR
    assert not deposed.acts_as_coordinator


@pytest.mark.parametrize(
    ("bug", "ask"),
    [
        ("join_group_unconfirmed", _join),
        ("sync_group_unconfirmed", _sync),
        ("leave_group_unconfirmed", _leave_of_a_stranger),
        ("heartbeat_unconfirmed", _heartbeat),
        ("offset_fetch_unconfirmed", _offset_fetch),
        ("describe_groups_unconfirmed", _describe),
        ("commits_refused_unconfirmed", _commit_of_the_next_generation),
    ],
)
@pytest_twisted.ensureDeferred
async def test_an_answer_that_is_not_confirmed_is_noticed(
    deposed: CoordinatingBroker,
    bug: str,
    ask: Callable[[CoordinatingBroker], Awaitable[ErrorCode]],
) -> None:
    with planted(bug):
        assert await ask(deposed) is not ErrorCode.NOT_COORDINATOR


@pytest_twisted.ensureDeferred
async def test_a_list_that_is_not_confirmed_is_noticed(deposed: CoordinatingBroker) -> None:
    with planted("list_groups_unconfirmed"):
        assert (await deposed.coordinator.list_groups())[0]


@pytest_twisted.ensureDeferred
async def test_a_deposed_coordinator_lists_no_groups(deposed: CoordinatingBroker) -> None:
    assert await deposed.coordinator.list_groups() == ([], ErrorCode.NONE)


@pytest_twisted.ensureDeferred
async def test_a_static_member_is_not_fenced_by_a_deposed_coordinator(open_broker: Open) -> None:
    """FENCED_INSTANCE_ID ends a client: only the coordinator that gave the place away may send it."""
    old, new = await open_broker(1), await open_broker(2)
    await old.lead(0)
    static = {"requires_known_member_id": False, "group_instance_id": "i"}
    joined = await old.coordinator.join("g", join_request("first", **static))
    await old.sync("first", 1, first=b"A")
    await new.lead(1)
    taken_over = await new.coordinator.join("g", join_request("second", **static))
    assert (joined.generation_id, taken_over.generation_id) == (1, 1)
    forget_confirmations(old)
    asked = await old.coordinator.heartbeat("g", "second-id", "i", 1)
    assert asked is ErrorCode.NOT_COORDINATOR


@pytest_twisted.ensureDeferred
async def test_a_deposed_coordinator_expires_no_offsets(deposed: CoordinatingBroker) -> None:
    znode = await deposed.zk.get("/consumers/g/offsets/t/0")
    versions = {("t", 0): znode.stat.version}
    assert await deposed.coordinator.drop_offsets("g", versions)
    assert (await deposed.zk.get("/consumers/g/offsets/t/0")).data == b"5000"
    assert not deposed.acts_as_coordinator


@pytest_twisted.ensureDeferred
async def test_a_group_that_is_empty_for_long_is_not_expired_by_a_deposed_coordinator(
    open_broker: Open,
) -> None:
    old, new = await open_broker(1), await open_broker(2)
    await old.lead(0)
    await old.commit({"t": {0: 10}})
    await new.lead(1)
    assert await new.commit({"t": {0: 5000}}) == [ErrorCode.NONE]
    assert await old.coordinator.expire_offsets("g", before_ms=1 << 60) == 0
    assert await new.offsets() == {"t": {0: 5000}}
    assert (await new.zk.get("/consumers/g/offsets/t/0")).data == b"5000"


@pytest_twisted.ensureDeferred
async def test_confirmations_of_one_turn_share_a_check(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    await stable(broker)
    await broker.commit({"t": {0: 10}}, **OF_G)
    multis = 0
    original = broker.zk.send

    def counted(message: object, *args: object) -> object:
        nonlocal multis
        multis += isinstance(message, Transaction)
        return original(message, *args)

    broker.zk.send = counted
    asked = [ensureDeferred(broker.offsets()) for _ in range(100)]
    asked += [ensureDeferred(broker.sync("b", 2)) for _ in range(100)]
    answers = await gatherResults(asked)
    assert answers[0] == {"t": {0: 10}}
    assert answers[-1].assignment == b"B"
    assert multis == 1
