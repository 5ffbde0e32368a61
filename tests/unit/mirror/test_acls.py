"""ACLs about reading are copied to the mirrored topics, and to no others; what is not copied is named."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping, Sequence

import pytest
from twisted.internet.task import Clock

from kclient.admin.acls import AclOperation, AclPermission, PatternType, TopicAcl
from kclient.errors import KafkaError
from kclient.wire.errors import ClusterAuthorizationFailed, SecurityDisabled
from mirrormaker.acl_sync import AclSync
from mirrormaker.acls import copied, covers, not_copied, not_visible, only_at_target
from mirrormaker.app import MirrorProcess
from mirrormaker.config import MirrorConfig
from mirrormaker.settings import LinkSettings


def acl(
    name: str,
    pattern: int = PatternType.LITERAL,
    operation: int = AclOperation.READ,
    permission: int = AclPermission.ALLOW,
) -> TopicAcl:
    return TopicAcl(name, pattern, "User:alice", "*", operation, permission)


@pytest.mark.parametrize(
    ("one", "topics"),
    [
        (acl("orders"), {"orders"}),
        (acl("orders", PatternType.PREFIXED), {"orders", "orders-eu"}),
        (acl("*"), {"orders", "orders-eu", "payments"}),
        (acl("*", PatternType.PREFIXED), set()),
        (acl("order"), set()),
    ],
)
def test_an_acl_is_about_the_topics_of_its_pattern(one: TopicAcl, topics: set[str]) -> None:
    every = ("orders", "orders-eu", "payments")
    assert {topic for topic in every if covers(one, topic)} == topics


def test_acls_about_mirrored_topics_are_named_and_the_others_are_not() -> None:
    found = [acl("orders"), acl("pay", PatternType.PREFIXED), acl("unrelated")]
    assert not_copied(found, ["orders", "payments", "third"]) == (
        "the source has 2 about 2 of 3 mirrored topics, and none is copied: "
        "orders: allow READ to User:alice from *, pay*: allow READ to User:alice from *"
    )
    assert not_copied(found, ["third"]) == ""
    assert not_copied([], ["orders"]) == ""


def test_many_acls_are_counted_and_the_first_are_shown() -> None:
    found = [acl("orders", operation=n, permission=AclPermission.DENY) for n in (2, 4, 8, 99)]
    text = not_copied(found, ["orders"])
    assert text.endswith("orders: deny DESCRIBE to User:alice from *, and 1 more")
    assert "orders: deny (99) to" in not_copied(found[3:], ["orders"])


def test_wanted_topics_that_only_acls_name_are_not_visible() -> None:
    found = [acl("orders"), acl("hidden"), acl("*"), acl("other"), acl("pre", PatternType.PREFIXED)]
    text = not_visible(found, lambda name: name != "other", {"orders": 1})
    assert text.startswith("1 topics have ACLs and are not listed by the source: hidden. Either")
    assert not_visible(found, lambda name: name == "orders", {"orders": 1}) == ""


MIRRORED = {"orders": "east.orders", "orders-eu": "east.orders-eu"}


def test_an_acl_about_reading_is_copied_to_each_mirrored_topic_that_it_covers() -> None:
    literal = {acl("east.orders")}
    both = {acl("east.orders"), acl("east.orders-eu")}
    assert copied([acl("orders")], MIRRORED) == literal
    assert copied([acl("orders", PatternType.PREFIXED)], MIRRORED) == both
    assert copied([acl("*")], MIRRORED) == both
    assert copied([acl("payments"), acl("pay", PatternType.PREFIXED)], MIRRORED) == set()


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (AclOperation.READ, AclOperation.READ),
        (AclOperation.DESCRIBE, AclOperation.DESCRIBE),
        (AclOperation.DESCRIBE_CONFIGS, AclOperation.DESCRIBE_CONFIGS),
        (AclOperation.WRITE, None),
        (AclOperation.CREATE, None),
        (AclOperation.DELETE, None),
        (AclOperation.ALTER, None),
        (AclOperation.ALTER_CONFIGS, None),
        (99, None),
    ],
)
@pytest.mark.parametrize("permission", AclPermission)
def test_what_lets_a_principal_change_a_topic_is_not_copied(
    operation: int, expected: int | None, permission: AclPermission
) -> None:
    found = copied([acl("orders", operation=operation, permission=permission)], MIRRORED)
    wanted = acl("east.orders", operation=expected or 0, permission=permission)
    assert found == (set() if expected is None else {wanted})


def test_a_principal_that_may_not_do_anything_may_not_describe_the_mirror() -> None:
    """An allow READ for others implies DESCRIBE, so deny READ would let the principal describe the topic."""
    reading = (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    everything = acl("orders", operation=AclOperation.ALL, permission=AclPermission.DENY)
    expected = {acl("east.orders", operation=n, permission=AclPermission.DENY) for n in reading}
    assert copied([everything], MIRRORED) == expected


def test_a_principal_that_may_do_anything_may_read_the_mirror() -> None:
    assert copied([acl("orders", operation=AclOperation.ALL)], MIRRORED) == {acl("east.orders")}


def test_acls_of_copies_that_the_source_does_not_have_are_named() -> None:
    there = [acl("east.orders"), acl("elsewhere"), acl("east.orders-eu")]
    there.append(acl("east.orders", operation=AclOperation.WRITE))
    text = only_at_target(there, {acl("east.orders")}, MIRRORED.values())
    assert text.startswith("1 of the target are not those of the source, and stay: east.orders-eu")
    assert only_at_target(there[:2], {acl("east.orders")}, MIRRORED.values()) == ""


class Clusters:
    """The ACLs of both clusters; an error stands for its answer."""

    def __init__(
        self,
        source: Sequence[TopicAcl] | KafkaError,
        target: Sequence[TopicAcl] | KafkaError,
        mode: str = "true",
    ) -> None:
        self.source, self.target = source, target
        self.created: list[TopicAcl] = []
        self.refusal: KafkaError | None = None
        self.lines: list[str] = []
        self.problems_meanwhile: list[str] = []
        self.sync = AclSync(
            LinkSettings(sync_acls=mode),
            at_source=self._at_source,
            at_target=self._at_target,
            create=self._create,
            report=lambda about, text: self.lines.append(f"{about} {text}"),
        )

    async def _at_source(self) -> Sequence[TopicAcl]:
        self.problems_meanwhile.append(self.sync.problem)
        return self._answer(self.source)

    async def _at_target(self) -> Sequence[TopicAcl]:
        return self._answer(self.target)

    @staticmethod
    def _answer(given: Sequence[TopicAcl] | KafkaError) -> Sequence[TopicAcl]:
        if isinstance(given, KafkaError):
            raise given
        return given

    async def _create(self, acls: Sequence[TopicAcl]) -> Mapping[TopicAcl, KafkaError | None]:
        self.created += acls
        return dict.fromkeys(acls, self.refusal)

    def run(self, now: float = 0.0, mirrored: Mapping[str, str] = MIRRORED) -> list[str]:
        """Return what is reported at *now*."""
        self.lines.clear()
        asyncio.run(self.sync.run(mirrored, wanted=lambda _: True, present=MIRRORED, now=now))
        return list(self.lines)


def test_only_what_the_target_lacks_is_added() -> None:
    pair = Clusters([acl("orders"), acl("orders-eu")], [acl("east.orders")])
    (line,) = pair.run()
    assert (
        line == "ACLs 1 were added at the target: east.orders-eu: allow READ to User:alice from *"
    )
    assert pair.created == [acl("east.orders-eu")]


def test_it_is_done_again_after_the_interval_and_when_other_topics_are_mirrored() -> None:
    pair = Clusters([acl("orders"), acl("orders-eu")], [])
    assert len(pair.run(0.0, {"orders": "east.orders"})) == 1
    assert pair.run(1.0, {"orders": "east.orders"}) == []
    pair.target = [acl("east.orders")]
    assert pair.run(2.0) == [
        "ACLs 1 were added at the target: east.orders-eu: allow READ to User:alice from *"
    ]
    pair.target = []
    assert pair.run(601.9) == []
    assert len(pair.run(602.0)) == 1


def test_a_target_without_an_authorizer_is_named_once() -> None:
    pair = Clusters([acl("orders")], SecurityDisabled("no authorizer"))
    (line,) = pair.run()
    assert line.startswith("ACLs the target has no authorizer; the source has 1 about 1 of 2")
    assert pair.run(600.0) == []
    assert Clusters([], SecurityDisabled("no authorizer")).run() == []


def test_what_the_target_refuses_is_named() -> None:
    pair = Clusters([acl("orders")], [])
    pair.refusal = ClusterAuthorizationFailed("creating an ACL")
    (line,) = pair.run()
    assert line.startswith(
        "ACLs that the target refuses 1 are not added at the target: east.orders"
    )
    denied = Clusters([acl("orders")], ClusterAuthorizationFailed("describing ACLs"))
    (line,) = denied.run()
    assert line.startswith("ACLs cannot be copied to the target: CLUSTER_AUTHORIZATION_FAILED")
    (line,) = Clusters(ClusterAuthorizationFailed("describing ACLs"), []).run()
    assert line.startswith("ACLs of the source are unknown, and none is copied")


@pytest.mark.parametrize("side", ["source", "target", "refusal"])
def test_what_is_not_copied_is_a_problem_until_it_is(side: str) -> None:
    pair = Clusters([acl("orders")], [])
    working = {"source": pair.source, "target": pair.target, "refusal": None}[side]
    setattr(pair, side, ClusterAuthorizationFailed("not yet"))
    pair.run(0.0)
    assert "CLUSTER_AUTHORIZATION_FAILED" in pair.sync.problem
    setattr(pair, side, working)
    pair.run(60.0)
    assert pair.sync.problem == ""


def test_a_problem_stays_while_it_is_tried_again_and_is_that_of_the_elected_worker() -> None:
    pair = Clusters([acl("orders")], ClusterAuthorizationFailed("not yet"))
    pair.run(0.0)
    pair.run(60.0)
    before, meanwhile = pair.problems_meanwhile
    assert (before, bool(meanwhile)) == ("", True)
    pair.sync.left_to_another()
    assert pair.sync.problem == ""


def test_acls_that_are_only_reported_are_no_problem() -> None:
    denied = ClusterAuthorizationFailed("describing ACLs")
    for pair in (Clusters(denied, [], "report"), Clusters([acl("orders")], [], "report")):
        pair.run()
        assert pair.sync.problem == ""
    without = Clusters([acl("orders")], SecurityDisabled("no authorizer"))
    without.run()
    assert without.sync.problem.startswith("the target has no authorizer")
    extra = Clusters([], [acl("east.orders")])
    assert extra.run() != []
    assert extra.sync.problem == ""


def test_acls_that_are_not_copied_are_an_exit_code_and_in_the_summary() -> None:
    names = {"clusters": "east, west", "east->west.enabled": "true"}
    names |= {f"{each}.bootstrap.servers": "127.0.0.1:1" for each in ("east", "west")}
    stream = io.StringIO()
    process = MirrorProcess(Clock(), MirrorConfig.of(names), once=True, stream=stream)
    assert process._exit_code() == 0
    process._mirrors[0].topics.acls.problem = "1 are not added at the target"
    assert process._exit_code() == 5
    process._print_summary()
    assert "  ACLs not copied: 1 are not added at the target" in stream.getvalue()


@pytest.mark.parametrize("side", ["source", "target", "refusal"])
def test_what_failed_is_tried_again_before_the_interval_has_passed(side: str) -> None:
    pair = Clusters([acl("orders")], [])
    working = {"source": pair.source, "target": pair.target, "refusal": None}[side]
    setattr(pair, side, ClusterAuthorizationFailed("not yet"))
    assert len(pair.run(0.0)) == 1
    assert pair.run(5.0) == []
    setattr(pair, side, working)
    assert pair.run(59.0) == []
    (line,) = pair.run(60.0)
    assert line.startswith("ACLs 1 were added at the target")
    assert pair.run(120.0) == []


def test_a_source_without_an_authorizer_gives_the_target_nothing() -> None:
    pair = Clusters(SecurityDisabled("no authorizer"), [acl("east.orders")])
    assert (pair.run(), pair.created) == ([], [])


def test_without_the_setting_acls_are_reported_and_with_false_they_are_not() -> None:
    pair = Clusters([acl("orders")], [], "report")
    (line,) = pair.run()
    assert line.startswith("ACLs the source has 1 about 1 of 2 mirrored topics, and none is copied")
    assert pair.created == []
    quiet = Clusters([acl("orders"), acl("hidden")], [], "false")
    assert (quiet.run(), quiet.created) == ([], [])
