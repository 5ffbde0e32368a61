"""Coordinators on a real ZooKeeper: the next one continues with the groups, the former one cannot write."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import UUID

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import ensureDeferred, gatherResults
from twisted.internet.task import deferLater

from kbroker.coordinator.group.core.commits import OffsetCommit
from kbroker.coordinator.group.core.effects import JoinGroupResult, MemberIdentity, Sync
from kbroker.coordinator.group.core.records import CommitDetail
from kbroker.coordinator.group.core.states import GroupState
from kbroker.coordinator.group.offset_expiry import OffsetExpiry
from kbroker.coordinator.transaction.producer_id_manager import BLOCK_SIZE, ProducerIdManager
from kbroker.zk.errors import NoNode
from kbroker.zk.previous_session import PreviousSession
from kbroker.zk.znodes import TopicAssignment, encode_topic
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import CoordinatorNotAvailable
from tests.kit.coordinators import CoordinatingBroker as Broker
from tests.kit.coordinators import Open, error_of, stable
from tests.kit.groups import join_request
from tests.kit.waiting import until
from tests.kit.zookeeper import Ensemble

pytestmark = pytest.mark.slow


@pytest_twisted.ensureDeferred
async def test_a_group_is_in_zookeeper_for_all_to_see(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    await stable(broker)
    ids = (await broker.zk.children("/consumers/g/ids")).names
    assert ids == ["a-id", "b-id"]
    node = await broker.zk.get("/consumers/g/ids/a-id")
    assert node.stat.ephemeral_owner == broker.zk.session.id
    assert b'"generation":2' in (await broker.zk.get("/consumers/g/state")).data


@pytest_twisted.ensureDeferred
async def test_a_member_that_leaves_takes_its_znode_with_it(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    await stable(broker)
    await broker.coordinator.leave("g", [MemberIdentity("b-id")])
    assert (await broker.zk.children("/consumers/g/ids")).names == ["a-id"]


@pytest_twisted.ensureDeferred
async def test_offsets_are_plain_numbers(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    assert await broker.commit({"t": {0: 5, 1: 7}}) == [ErrorCode.NONE] * 2
    assert await broker.commit({"t": {0: 6}, "u": {3: 1}}) == [ErrorCode.NONE] * 2
    assert (await broker.zk.get("/consumers/g/offsets/t/0")).data == b"6"
    assert (await broker.zk.get("/consumers/g/offsets/u/3")).data == b"1"
    assert await broker.offsets() == {"t": {0: 6, 1: 7}, "u": {3: 1}}


@pytest_twisted.ensureDeferred
async def test_the_next_coordinator_carries_on(open_broker: Open) -> None:
    old, new = await open_broker(1), await open_broker(2)
    await old.lead(0)
    await stable(old)
    await old.commit({"t": {0: 5}}, member_id="a-id", generation_id=2)
    await new.lead(1)
    assert await new.heartbeat("a", 2) is await new.heartbeat("b", 2) is ErrorCode.NONE
    assert (await new.sync("b", 2)).assignment == b"B"
    assert await new.offsets() == {"t": {0: 5}}
    committed = await new.commit({"t": {0: 6}}, member_id="a-id", generation_id=2)
    assert committed == [ErrorCode.NONE]


@pytest_twisted.ensureDeferred
async def test_the_live_members_belong_to_the_session_of_the_next_coordinator(
    open_broker: Open,
) -> None:
    old, new = await open_broker(1), await open_broker(2)
    await old.lead(0)
    await stable(old)
    await new.lead(1)

    async def owners() -> set[int]:
        names = (await new.zk.children("/consumers/g/ids")).names
        nodes = [await new.zk.get(f"/consumers/g/ids/{name}") for name in names]
        return {node.stat.ephemeral_owner for node in nodes} if len(nodes) == 2 else set()

    for _ in range(100):
        if await owners() == {new.zk.session.id}:
            return
    raise AssertionError("the ephemerals still belong to the old session")


@pytest_twisted.ensureDeferred
async def test_a_deposed_coordinator_cannot_write(open_broker: Open) -> None:
    old, new = await open_broker(1), await open_broker(2)
    await old.lead(0)
    await stable(old)
    await old.commit({"t": {0: 5}}, member_id="a-id", generation_id=2)
    await new.lead(1)
    await new.commit({"t": {0: 9}}, member_id="a-id", generation_id=2)
    # The old coordinator received nothing, and still holds its groups.
    assert old.acts_as_coordinator
    refused = await old.commit({"t": {0: 6}}, member_id="a-id", generation_id=2)
    assert refused == [ErrorCode.NOT_COORDINATOR]
    assert (await new.zk.get("/consumers/g/offsets/t/0")).data == b"9"
    assert await old.heartbeat("a", 2) is ErrorCode.NOT_COORDINATOR


@pytest_twisted.ensureDeferred
async def test_a_deposed_coordinator_cannot_rebalance(open_broker: Open) -> None:
    old, new = await open_broker(1), await open_broker(2)
    await old.lead(0)
    await stable(old)
    await new.write_state(1)
    waiting = old.coordinator.join("g", join_request("c", requires_known_member_id=False))
    left = await old.coordinator.leave("g", [MemberIdentity("b-id")])
    assert left.error is ErrorCode.NOT_COORDINATOR
    assert (await waiting).error is ErrorCode.NOT_COORDINATOR


@pytest_twisted.ensureDeferred
async def test_an_isr_change_does_not_depose(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    await broker.commit({"t": {0: 1}})
    await broker.write_state(0)  # same leader and epoch, another version
    commits = gatherResults(
        [ensureDeferred(broker.commit({"t": {n: n}}, group=f"g{n}")) for n in range(20)]
    )
    assert await commits == [[ErrorCode.NONE]] * 20


@pytest_twisted.ensureDeferred
async def test_a_wrong_picture_of_the_znodes_fails_no_commit(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    await broker.commit({"t": {0: 1}}, group="good")
    await broker.commit({"t": {0: 1}}, group="bad")
    # Another client deletes an offset, and creates the next one.
    await broker.zk.delete("/consumers/bad/offsets/t/0")
    await broker.zk.create("/consumers/bad/offsets/t/1", b"77")
    commits = gatherResults(
        [
            ensureDeferred(broker.commit({"t": {n: 2 + n}}, group=g))
            for g in ("good", "bad")
            for n in (0, 1)
        ]
    )
    assert await commits == [[ErrorCode.NONE]] * 4
    for group in ("good", "bad"):
        assert await broker.offsets(group) == {"t": {0: 2, 1: 3}}
        assert (await broker.zk.get(f"/consumers/{group}/offsets/t/1")).data == b"3"


@pytest_twisted.ensureDeferred
async def test_metadata_and_leader_epoch_survive(open_broker: Open) -> None:
    old, new = await open_broker(1), await open_broker(2)
    await old.lead(0)
    detail = CommitDetail(7, "métadonnées")
    await old.coordinator.commit("g", [("t", 0, OffsetCommit(5, detail))])
    await old.coordinator.commit("g", [("t", 1, OffsetCommit(5, detail))])
    await old.coordinator.commit("g", [("t", 1, OffsetCommit(6))])
    await new.lead(1)
    found = (await new.coordinator.offsets("g")).committed
    assert found["t"][0].detail == detail
    assert found["t"][1].detail == CommitDetail()
    assert found["t"][0].timestamp_ms > 1_600_000_000_000


@pytest_twisted.ensureDeferred
async def test_too_much_metadata_fails_its_partition_only(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    errors = await broker.coordinator.commit(
        "g",
        [
            ("t", 0, OffsetCommit(5, CommitDetail(-1, "x" * 4097))),
            ("t", 1, OffsetCommit(5, CommitDetail(-1, "x" * 4096))),
            ("../t", 2, OffsetCommit(5)),
        ],
    )
    assert errors == [
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]


@pytest.mark.parametrize(
    "group", ["../../x", "/a/b", ".", "..", "ünï", "a b", "%2F", "x" * 1024, "😀"]
)
@pytest_twisted.ensureDeferred
async def test_any_group_id_has_its_own_place(open_broker: Open, group: str) -> None:
    broker = await open_broker()
    await broker.lead(0)
    assert await broker.commit({"t": {0: 1}}, group=group) == [ErrorCode.NONE]
    assert len((await broker.zk.children("/consumers")).names) == 1
    await broker.lead(1)
    assert await broker.offsets(group) == {"t": {0: 1}}


@pytest.mark.parametrize("group", ["", "x" * 1025])
@pytest_twisted.ensureDeferred
async def test_an_impossible_group_id_is_refused(open_broker: Open, group: str) -> None:
    broker = await open_broker()
    await broker.lead(0)
    assert await broker.commit({"t": {0: 1}}, group=group) == [ErrorCode.INVALID_GROUP_ID]
    assert (await broker.join("a", group=group)).error is ErrorCode.INVALID_GROUP_ID


@pytest_twisted.ensureDeferred
async def test_a_commit_of_many_partitions_is_split_and_whole(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    offsets = {"t": {p: p for p in range(5000)}}
    assert await broker.commit(offsets) == [ErrorCode.NONE] * 5000
    await broker.lead(1)
    assert await broker.offsets() == offsets


@pytest_twisted.ensureDeferred
async def test_a_deleted_group_leaves_nothing(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    assert await error_of(broker.coordinator.delete("g")) is ErrorCode.GROUP_ID_NOT_FOUND
    await stable(broker)
    await broker.coordinator.commit(
        "g", [("t", 0, OffsetCommit(5, CommitDetail(1, "m")))], member_id="a-id", generation_id=2
    )
    assert await error_of(broker.coordinator.delete("g")) is ErrorCode.NON_EMPTY_GROUP
    await broker.coordinator.leave("g", [MemberIdentity("a-id"), MemberIdentity("b-id")])
    assert await error_of(broker.coordinator.delete("g")) is ErrorCode.NONE
    assert await broker.zk.exists("/consumers/g") is None
    assert await broker.offsets() == {}
    assert broker.coordinator.listing() == ([], ErrorCode.NONE)
    assert await broker.commit({"t": {0: 1}}) == [ErrorCode.NONE]


@pytest_twisted.ensureDeferred
async def test_offsets_of_topics_in_use_are_not_deleted(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    await broker.commit({"t": {0: 1, 1: 2}})
    errors = await broker.coordinator.delete_offsets("g", [("t", 0), ("t", 9)])
    assert errors == [ErrorCode.NONE] * 2
    assert await broker.offsets() == {"t": {1: 2}}
    with pytest.raises(NoNode):
        await broker.zk.get("/consumers/g/offsets/t/0")
    subscription = (("range", b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"),)
    request = join_request("a", requires_known_member_id=False, protocols=subscription)
    assert (await broker.coordinator.join("g", request)).error is ErrorCode.NONE
    in_use = await broker.coordinator.delete_offsets("g", [("t", 1)])
    assert in_use == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


@pytest_twisted.ensureDeferred
async def test_a_poisoned_group_does_not_stop_the_others(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.zk.create("/consumers/bad/state", b"{", make_parents=True)
    await broker.zk.create("/consumers/bad/offsets/t/0", b"many", make_parents=True)
    await broker.zk.create("/consumers/bad/offsets/t/1", b"1", make_parents=True)
    await broker.lead(0)
    await stable(broker)
    assert await broker.offsets("bad") == {"t": {1: 1}}
    assert await broker.commit({"t": {0: 4}}, group="bad") == [ErrorCode.NONE]
    assert (await broker.join("x", group="bad")).error is ErrorCode.NONE


@pytest_twisted.ensureDeferred
async def test_an_expired_session_takes_over_again_without_a_rebalance(
    open_broker: Open, tmp_path: Path
) -> None:
    broker = await open_broker()
    await broker.lead(0)
    await stable(broker)
    await broker.commit({"t": {0: 5}}, member_id="a-id", generation_id=2)
    first = broker.zk.session.id
    previous = PreviousSession(tmp_path)
    previous.remember(broker.zk)
    await previous.expire(reactor, broker.zk.hosts, 5)
    await until(lambda: broker.zk.session and broker.zk.session.id != first, what="a new session")
    await until(broker.loaded, what="the coordinator to load again")
    assert await broker.heartbeat("a", 2) is ErrorCode.NONE
    assert await broker.offsets() == {"t": {0: 5}}
    assert await broker.commit({"t": {0: 6}}, member_id="a-id", generation_id=2) == [ErrorCode.NONE]


@pytest_twisted.ensureDeferred
async def test_without_zookeeper_heartbeats_succeed_and_commits_fail_fast(
    own_ensemble: Ensemble, open_broker: Open
) -> None:
    broker = await open_broker(1, own_ensemble.connect)
    await broker.lead(0)
    await stable(broker)
    await broker.commit({"t": {0: 5}}, member_id="a-id", generation_id=2)
    own_ensemble.kill()
    await until(lambda: not broker.zk.connected, what="the connection to break")
    broker.no_successor_at = float("inf")
    assert await broker.heartbeat("a", 2) is ErrorCode.NONE
    refused = await broker.commit({"t": {0: 6}}, member_id="a-id", generation_id=2)
    assert refused == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert await broker.offsets() == {"t": {0: 5}}
    # What has to be written is refused at once, and the members go on.
    both = [MemberIdentity("a-id"), MemberIdentity("b-id")]
    assert (await broker.join("c")).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    left = await broker.coordinator.leave("g", both)
    assert left.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await broker.sync("b", 2)).assignment == b"B"
    assert await broker.heartbeat("b", 2) is ErrorCode.NONE
    own_ensemble.start(wait=False)
    await until(lambda: broker.zk.connected and broker.loaded(), timeout=20, what="ZooKeeper")
    assert await broker.heartbeat("b", 2) is ErrorCode.NONE
    assert (await broker.coordinator.leave("g", both)).error is ErrorCode.NONE
    assert (await broker.join("c")).generation_id == 4


@pytest_twisted.ensureDeferred
async def test_without_zookeeper_producer_ids_last_for_a_block(
    own_ensemble: Ensemble, open_broker: Open
) -> None:
    broker = await open_broker(1, own_ensemble.connect)
    ids = ProducerIdManager(broker.zk, 1)
    assert await ids.next() == 0
    own_ensemble.kill()
    await until(lambda: not broker.zk.connected, what="the connection to break")
    assert [await ids.next() for _ in range(BLOCK_SIZE - 1)] == list(range(1, BLOCK_SIZE))
    with pytest.raises(CoordinatorNotAvailable):
        await ids.next()
    own_ensemble.start()
    await until(lambda: broker.zk.connected, timeout=20, what="ZooKeeper")
    assert await _next_id(ids) in (BLOCK_SIZE, 2 * BLOCK_SIZE)


async def _next_id(ids: ProducerIdManager) -> int:
    """Return the next id, tried again as a client does: a connection that has just begun may break once more.

    A block that was written when it broke is not used: the next one is.
    """
    deadline = time.monotonic() + 20
    while True:
        try:
            return await ids.next()
        except CoordinatorNotAvailable:
            if time.monotonic() > deadline:
                raise
            await deferLater(reactor, 0.1)


@pytest_twisted.ensureDeferred
async def test_offsets_with_a_commit_in_doubt_are_those_acknowledged_before(
    own_ensemble: Ensemble, open_broker: Open
) -> None:
    broker = await open_broker(1, own_ensemble.connect)
    await broker.lead(0)
    await broker.commit({"t": {0: 5}})
    own_ensemble.pause()
    in_doubt = ensureDeferred(broker.commit({"t": {0: 8}}))
    await until(lambda: broker.coordinator._writer._in_flight, what="the commit to be sent")
    broker.no_successor_at = float("inf")
    refused = await in_doubt
    assert refused[0] in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT)
    assert await broker.offsets() == {"t": {0: 5}}
    own_ensemble.resume()
    await until(lambda: broker.zk.connected and broker.loaded(), timeout=20, what="ZooKeeper")
    applied = int((await broker.zk.get("/consumers/g/offsets/t/0")).data)
    assert applied in (5, 8)
    assert await broker.offsets() == {"t": {0: applied}}


@pytest_twisted.ensureDeferred
async def test_commits_in_flight_when_the_connection_breaks_are_not_served_unread(
    own_ensemble: Ensemble, open_broker: Open
) -> None:
    broker = await open_broker(1, own_ensemble.connect)
    await broker.lead(0)
    await broker.commit({"t": {0: 0}})
    own_ensemble.pause()
    commits = [ensureDeferred(broker.commit({"t": {p: 8}})) for p in range(50)]
    await until(lambda: broker.coordinator._writer._in_flight, what="the commits to be sent")
    own_ensemble.kill()
    results = await gatherResults(commits)
    assert {error for errors in results for error in errors} == {
        ErrorCode.COORDINATOR_NOT_AVAILABLE
    }
    assert await error_of(broker.coordinator.offsets("g")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    own_ensemble.start()
    deadline = reactor.seconds() + 20
    while (error := await error_of(broker.coordinator.offsets("g"))) is not ErrorCode.NONE:
        assert reactor.seconds() < deadline, error
        await deferLater(reactor, 0.05)
    served = (await broker.coordinator.offsets("g")).committed
    for partition, committed in served["t"].items():
        node = await broker.zk.get(f"/consumers/g/offsets/t/{partition}")
        assert node.data == b"%d" % committed.offset


@pytest_twisted.ensureDeferred
async def test_groups_of_other_partitions_are_not_ours(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    await broker.write_topic(partitions=50)
    await broker.lead(1)
    assert await broker.commit({"t": {0: 1}}, group="my-group") == [ErrorCode.NOT_COORDINATOR]
    refused = await broker.coordinator.heartbeat("my-group", "m", None, 1)
    assert refused is ErrorCode.NOT_COORDINATOR


@pytest_twisted.ensureDeferred
async def test_while_groups_are_loaded_requests_get_coordinator_load_in_progress(
    open_broker: Open,
) -> None:
    broker = await open_broker()
    await broker.write_state(0)
    broker.coordinator.on_election(0, 0)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (await broker.join("a")).error is loading
    assert await broker.heartbeat("a", 1) is ErrorCode.NONE
    assert await broker.commit({"t": {0: 1}}) == [loading]
    assert await error_of(broker.coordinator.offsets("g")) is loading
    await until(broker.loaded)


@pytest_twisted.ensureDeferred
async def test_a_coordinator_that_does_not_lead_in_zookeeper_holds_no_group(
    open_broker: Open,
) -> None:
    one, two = await open_broker(1), await open_broker(2)
    await one.lead(3)
    two.coordinator.on_election(0, 2)
    await until(lambda: not two.coordinator._shards.partitions, what="it to find out")
    assert await two.heartbeat("a", 1) is ErrorCode.NOT_COORDINATOR


@pytest_twisted.ensureDeferred
async def test_a_group_without_members_is_not_kept(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    refused = join_request("a", session_timeout=0.0)
    assert (await broker.coordinator.join("g", refused)).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert broker.coordinator.listing() == ([], ErrorCode.NONE)
    assert await error_of(broker.coordinator.describe("g")) is ErrorCode.GROUP_ID_NOT_FOUND


@pytest_twisted.ensureDeferred
async def test_the_state_of_a_group_of_assigned_consumers_is_empty(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    await broker.commit({"t": {0: 1}})
    described = await broker.coordinator.describe("g")
    assert described.machine.state is GroupState.EMPTY
    assert [listing.group_id for listing in broker.coordinator.listing()[0]] == ["g"]


class Expiry:
    """An `OffsetExpiry` on a broker, an hour of retention, and a wall clock that can be moved."""

    def __init__(self, broker: Broker) -> None:
        self.topics = {"t", "u"}
        self.ahead_ms = 0
        self.expiry = OffsetExpiry(
            reactor,
            broker.zk,
            broker.coordinator,
            retention_ms=3_600_000,
            interval=600.0,
            is_known=lambda topic: topic in self.topics,
            now_ms=lambda: int(time.time() * 1000) + self.ahead_ms,
        )


@pytest_twisted.ensureDeferred
async def test_offsets_of_a_group_that_is_empty_for_long_expire(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    await stable(broker)
    await broker.commit({"t": {0: 1}}, group="simple")
    await broker.commit({"t": {0: 1}}, member_id="a-id", generation_id=2)
    expiry = Expiry(broker)
    await expiry.expiry.sweep()
    assert await broker.offsets("simple") == {"t": {0: 1}}
    expiry.ahead_ms = 3_600_001
    await expiry.expiry.sweep()
    assert await broker.zk.exists("/consumers/simple") is None
    assert await broker.offsets() == {"t": {0: 1}}  # it has members
    await broker.coordinator.leave("g", [MemberIdentity("a-id"), MemberIdentity("b-id")])
    expiry.ahead_ms = 3_500_000
    await expiry.expiry.sweep()
    assert await broker.offsets() == {"t": {0: 1}}
    expiry.ahead_ms = 3_700_000
    await expiry.expiry.sweep()
    assert await broker.zk.exists("/consumers/g") is None
    assert broker.coordinator.listing()[0] == []


@pytest_twisted.ensureDeferred
async def test_a_deleted_topic_takes_its_offsets_with_it(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    await broker.commit({"t": {0: 1}, "u": {0: 2}})
    topic_id = UUID(int=1)
    await broker.zk.create("/brokers/topics/u", encode_topic(TopicAssignment(topic_id, {})))
    expiry = Expiry(broker)
    expiry.expiry.start()
    expiry.topics.clear()  # the cache lost both, but u is still in ZooKeeper
    await expiry.expiry.forget_topics({"t": None, "u": topic_id})
    assert await broker.offsets() == {"t": {}, "u": {0: 2}}
    assert await broker.zk.exists("/consumers/g/offsets/t/0") is None
    expiry.expiry.stop()


@pytest_twisted.ensureDeferred
async def test_no_acknowledged_offset_is_lost_while_leadership_moves(open_broker: Open) -> None:
    """S31: clients commit growing offsets to the broker that accepts them; two brokers alternate as coordinator."""
    brokers = [await open_broker(1), await open_broker(2)]
    acknowledged: dict[tuple[str, int], int] = {}
    refusals: set[ErrorCode] = set()
    moving = True

    async def commit_on(client: int) -> None:
        offset = 0
        while moving:
            offset += 1
            for broker in brokers:  # one of them acts as coordinator, deposed or not
                errors = await broker.commit({"t": {client: offset, 100: offset}}, group="g")
                if errors[0] is ErrorCode.NONE:
                    acknowledged["t", client] = offset
                refusals.update(errors)
            await deferLater(reactor, 0.001)

    clients = [ensureDeferred(commit_on(client)) for client in range(8)]
    for epoch in range(30):
        await brokers[epoch % 2].lead(epoch)
        if epoch % 3:  # the old coordinator often gets no request
            brokers[(epoch + 1) % 2].coordinator.on_resignation(0)
        await deferLater(reactor, 0.03)
    moving = False
    await gatherResults(clients)
    kept = await brokers[1].offsets()
    assert len(acknowledged) == 8
    for (topic, partition), offset in acknowledged.items():
        assert kept[topic][partition] >= offset
        data = (await brokers[0].zk.get(f"/consumers/g/offsets/{topic}/{partition}")).data
        assert int(data) == kept[topic][partition]
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert refusals <= {ErrorCode.NONE, ErrorCode.NOT_COORDINATOR, loading}


@pytest_twisted.ensureDeferred
async def test_many_members_rebalance_while_leadership_moves(open_broker: Open) -> None:
    """S30: generations only grow, and in each a partition has one owner, with any coordinator."""
    brokers = [await open_broker(1), await open_broker(2)]
    await brokers[0].lead(0)
    owners: dict[tuple[int, bytes], str] = {}
    generations: dict[str, int] = {}
    moving = True
    leading = 0

    async def member(number: int) -> None:
        member_id = ""
        while moving:
            request = join_request(f"m{number}", member_id, requires_known_member_id=False)
            joined = await brokers[leading].coordinator.join("g", request)
            if joined.error is not ErrorCode.NONE:
                if joined.error is ErrorCode.UNKNOWN_MEMBER_ID:
                    member_id = ""
                await deferLater(reactor, 0.01)
                continue
            member_id = joined.member_id
            assert joined.generation_id >= generations.get(member_id, 0)
            generations[member_id] = joined.generation_id
            assignment = {m.member_id: b"p%d" % i for i, m in enumerate(joined.members)}
            sync = Sync(member_id, joined.generation_id, assignment)
            synced = await brokers[leading].coordinator.sync("g", sync)
            if synced.error is ErrorCode.NONE and synced.assignment:
                owned = (joined.generation_id, synced.assignment)
                assert owners.setdefault(owned, member_id) == member_id
            await deferLater(reactor, 0.02)

    members = [ensureDeferred(member(number)) for number in range(20)]
    for epoch in range(1, 16):
        await deferLater(reactor, 0.1)
        leading = epoch % 2
        await brokers[leading].lead(epoch)
    await until(lambda: len(set(owners.values())) == 20, what="20 owners")
    moving = False
    brokers[0].coordinator.stop()
    brokers[1].coordinator.stop()
    await gatherResults(members)
    assert len({generation for generation, _ in owners}) > 3


@pytest_twisted.ensureDeferred
async def test_a_group_as_large_as_its_znode_allows_is_written_and_one_larger_refused(
    open_broker: Open,
) -> None:
    broker = await open_broker()
    await broker.lead(0)

    async def join(name: str, size: int) -> JoinGroupResult:
        request = join_request(
            name, requires_known_member_id=False, protocols=(("range", bytes(size)),)
        )
        return await broker.coordinator.join("g", request)

    assert (await join("a", 1 << 20)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert (await join("a", 670_000)).error is ErrorCode.NONE
    assert (await join("b", 670_000)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    data = (await broker.zk.get("/consumers/g/state")).data
    assert 890_000 < len(data) < 900_000
    assert await broker.heartbeat("a", 1) is ErrorCode.NONE


@pytest_twisted.ensureDeferred
async def test_many_members_are_written_in_several_multis(open_broker: Open) -> None:
    broker = await open_broker()
    await broker.lead(0)
    first = await broker.join("m0")
    joining = [
        broker.coordinator.join("g", join_request(f"m{n}", requires_known_member_id=False))
        for n in range(1, 700)
    ]
    again = await broker.join("m0", first.member_id)
    assert {joined.error for joined in await gatherResults(joining)} == {ErrorCode.NONE}
    assert len(again.members) == 700
    assert len((await broker.zk.children("/consumers/g/ids")).names) == 700
    await broker.coordinator.leave("g", [MemberIdentity(f"m{n}-id") for n in range(600)])
    assert len((await broker.zk.children("/consumers/g/ids")).names) == 100
