"""Whatever is killed, and however often the clusters change roles: no record of a lost cluster is removed unexported.

A model of both clusters' logs, marks, topic ids and export directory; `stage_of` decides every step, as in
`mirrormaker.recopy`. A kill is a run of the command that performs fewer steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mirrormaker.command_exit import Refused
from mirrormaker.failback_stage import Stage, stage_of
from mirrormaker.lineage import SOURCE_TOPIC_ID, text_of
from mirrormaker.promotion import Stage as PromotionStage
from mirrormaker.promotion import stage_of as promotion_stage
from mirrormaker.promotion_record import Opened
from mirrormaker.topics import MARK, PROMOTION, SOURCE_LOST, Topic, TopicPair, compared_with
from tests.kit.property_tests import examples

IDS = {"east": "E", "west": "W"}
MARKS = {MARK: "mark", SOURCE_TOPIC_ID: "copied", PROMOTION: "promotion"}


@dataclass
class Side:
    """One cluster's topic; None is no topic."""

    topic: Topic | None
    log: list[int] = field(default_factory=list)
    is_up: bool = True
    before: dict[str, str] | None = None
    """The marks that a fence replaced, which the fence states."""

    @property
    def accepts_producers(self) -> bool:
        return self.is_up and self.topic is not None and not self.topic.overrides.get(MARK)

    def set(self, **overrides: str | None) -> None:
        assert self.topic is not None
        names = {key: name for name, key in MARKS.items()}
        merged = {**self.topic.overrides, **{names[key]: value for key, value in overrides.items()}}
        self.topic = replace(
            self.topic, overrides={k: v for k, v in merged.items() if v is not None}
        )


class Clusters(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.topic_ids = 0
        self.records = 0
        self.promotions = 0
        self.acknowledged: set[int] = set()
        self.exported: dict[str, set[int]] = {}
        """By topic id, the records of complete exports."""
        self.exported_ends: dict[str, int] = {}
        """By topic id, the log end of the last one."""
        self.primary, self.mirror = "east", "west"
        self.sides = {"east": Side(self.new_topic()), "west": Side(None)}
        self.create_mirror()

    def new_topic(self, **overrides: str) -> Topic:
        self.topic_ids += 1
        return Topic(1, UUID(int=self.topic_ids), overrides, {"cleanup.policy": "delete"}, 1)

    def create_mirror(self) -> None:
        source, target = self.sides[self.primary], self.sides[self.mirror]
        assert source.topic is not None
        target.topic = self.new_topic(
            **{MARK: IDS[self.primary], SOURCE_TOPIC_ID: text_of(source.topic.topic_id)}
        )
        target.log = []

    def mark(self) -> None:
        """Mark the target as a mirror of the source, with which it was compared."""
        source, target = self.sides[self.primary], self.sides[self.mirror]
        assert source.topic is not None
        assert target.topic is not None
        target.set(copied=text_of(source.topic.topic_id))
        found = compared_with(source.topic, IDS[self.mirror])
        target.topic = replace(target.topic, overrides={**target.topic.overrides, **found})

    # --- the clusters

    @rule(side=st.sampled_from(["east", "west"]), count=st.integers(1, 3))
    def produce(self, side: str, count: int) -> None:
        found = self.sides[side]
        if found.accepts_producers:
            new = list(range(self.records, self.records + count))
            self.records += count
            found.log += new
            self.acknowledged |= set(new)

    @rule(count=st.integers(1, 3))
    def copy(self, count: int) -> None:
        """kmirror run: creates a missing topic, and appends to a mirror that is a prefix."""
        source, target = self.sides[self.primary], self.sides[self.mirror]
        if not (source.is_up and target.is_up) or source.topic is None:
            return
        if source.topic.overrides.get(MARK):
            return
        if target.topic is None:
            self.create_mirror()
            return
        stated = target.topic.overrides.get(SOURCE_TOPIC_ID) == text_of(source.topic.topic_id)
        if target.topic.overrides.get(MARK) != IDS[self.primary]:
            return
        if source.log[: len(target.log)] != target.log:
            return  # stopped: diverged
        if not stated:
            self.mark()
        target.log += source.log[len(target.log) : len(target.log) + count]

    @precondition(lambda self: self.sides[self.primary].is_up)
    @rule(in_an_exchange=st.booleans())
    def lose_and_promote(self, in_an_exchange: bool) -> None:
        """promote --source-lost; *in_an_exchange*: the source is lost while a promotion with both clusters runs."""
        if in_an_exchange:
            self.fence_for_an_exchange()
        lost, target = self.sides[self.primary], self.sides[self.mirror]
        if not target.is_up or target.topic is None or not target.topic.overrides.get(MARK):
            return
        if target.topic.overrides.get(SOURCE_TOPIC_ID) != text_of(
            lost.topic.topic_id if lost.topic else None
        ):
            return
        lost.is_up = False
        self.promotions += 1
        stored = Opened(IDS[self.primary], SOURCE_LOST, self.promotions, (0,), (None,)).text()
        target.set(mark="", promotion=stored)
        self.primary, self.mirror = self.mirror, self.primary

    @rule()
    def come_back(self) -> None:
        self.sides[self.mirror].is_up = True

    @rule()
    def exchange(self) -> None:
        """kmirror promote with both clusters: drained, so nothing is lost."""
        source, target = self.sides[self.primary], self.sides[self.mirror]
        if not (source.is_up and target.is_up) or source.topic is None or source.log != target.log:
            return
        try:
            stage = promotion_stage(self.pair())
        except Refused:
            return
        assert target.topic is not None
        if stage is PromotionStage.MIRRORED:
            source.set(mark=IDS[self.mirror], copied=text_of(target.topic.topic_id), promotion=None)
            target.set(mark="", promotion=None)
            self.primary, self.mirror = self.mirror, self.primary

    @rule()
    def fence_for_an_exchange(self) -> None:
        """kmirror promote that is killed, or loses its source, before it has copied everything."""
        source, target = self.sides[self.primary], self.sides[self.mirror]
        if not (source.is_up and target.is_up) or source.topic is None or target.topic is None:
            return
        try:
            if promotion_stage(self.pair()) is not PromotionStage.MIRRORED:
                return
        except Refused:
            return
        source.before = {
            name: value for name, value in source.topic.overrides.items() if name in MARKS
        }
        source.set(mark=IDS[self.mirror], copied=text_of(target.topic.topic_id))

    @rule()
    def abort_the_exchange(self) -> None:
        """kmirror promote --abort."""
        source, target = self.sides[self.primary], self.sides[self.mirror]
        if not source.is_up or source.topic is None or target.topic is None:
            return
        if source.topic.overrides.get(MARK) == IDS[self.mirror] and target.topic.overrides.get(
            MARK
        ):
            before = source.before or {}
            source.set(**{key: before.get(name) for name, key in MARKS.items()})

    # --- the command

    @rule(steps=st.integers(1, 5))
    def failback(self, steps: int) -> None:
        """Run the command, and kill it after *steps* steps."""
        for _ in range(steps):
            if not self.step():
                return

    def pair(self) -> TopicPair:
        source, target = self.sides[self.primary], self.sides[self.mirror]
        assert source.topic is not None
        return TopicPair(
            name="t",
            source=source.topic,
            target=target.topic,
            copy="t",
            source_id=IDS[self.primary],
            target_id=IDS[self.mirror],
        )

    def stage(self) -> Stage | None:
        pair = self.pair()
        return stage_of(pair, is_exported=pair.source.copied_topic_id in self.exported)

    def step(self) -> bool:
        """Perform one step; return whether there was one."""
        source, target = self.sides[self.primary], self.sides[self.mirror]
        if not (source.is_up and target.is_up):
            return False
        try:
            stage = self.stage()
        except Refused:
            return False
        if stage is Stage.RETURNED:
            target.set(mark=IDS[self.primary], copied=None)
        elif stage is Stage.FENCED:
            assert target.topic is not None
            assert source.topic is not None
            topic_id = text_of(target.topic.topic_id)
            if self.exported_ends.get(topic_id) != len(target.log):
                # An export of other log ends is refused (`changed`): the operator names another directory.
                lost = set(target.log) - set(source.log)
                self.exported[topic_id] = self.exported.get(topic_id, set()) | lost
                self.exported_ends[topic_id] = len(target.log)
            elif source.log[: len(target.log)] == target.log:
                self.mark()
            else:
                target.topic, target.log = None, []
        elif stage is Stage.DELETED:
            self.create_mirror()
        return stage not in (None, Stage.MIRROR)

    # --- what must hold

    @invariant()
    def every_acknowledged_record_is_somewhere(self) -> None:
        kept = set().union(*self.exported.values(), *(side.log for side in self.sides.values()))
        assert self.acknowledged <= kept

    @invariant()
    def one_cluster_accepts_producers_after_a_failback(self) -> None:
        source, target = self.sides[self.primary], self.sides[self.mirror]
        if not (source.is_up and target.is_up):
            return
        try:
            is_mirror = self.stage() is Stage.MIRROR
        except Refused:
            return
        if is_mirror:
            assert not target.accepts_producers
            assert source.log[: len(target.log)] == target.log

    def teardown(self) -> None:
        """The command that is not killed ends with a mirror."""
        if not hasattr(self, "sides"):
            return
        self.come_back()
        self.sides[self.primary].is_up = True
        self.abort_the_exchange()
        while self.step():
            pass
        assert self.stage() is Stage.MIRROR


TestFailback = Clusters.TestCase
TestFailback.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
