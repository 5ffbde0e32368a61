"""Whatever is lost, doubled, late or killed: the target is a prefix of the source (link.py, 1-4)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from mirrormaker.link_state import GapPolicy, LinkState
from tests.kit.mirror_world import World
from tests.kit.property_tests import examples

spans = st.lists(st.integers(1, 3), min_size=1, max_size=4)
ones = st.lists(st.just(1), min_size=1, max_size=4)


class OneLink(RuleBasedStateMachine):
    """What may happen to every link."""

    world: World

    @precondition(lambda self: self.world.link.has_append)
    @rule()
    def send(self):
        self.world.send()

    @precondition(lambda self: self.world.wire)
    @rule()
    def target_handles(self):
        self.world.target_handles()

    @rule(appends=st.integers(1, 5))
    def fill_pipeline(self, appends):
        self.world.fill_pipeline(appends)

    @rule(turns=st.integers(1, 10))
    def work(self, turns):
        for _ in range(turns):
            self.world.step()

    @rule()
    def killed(self):
        self.world.new_link()


class Copying(OneLink):
    """One partition, one mirror at a time, and everything that may happen to them but foreign hands."""

    @initialize(first=st.lists(spans, max_size=6), cut=st.none() | st.integers(0, 12))
    def begin(self, first, cut):
        self.world = World()
        for each in first:
            self.world.produce(*each)
        ends = [0, *(b.end for b in self.world.source)]
        if cut is not None:
            self.world.cut = min(ends, key=lambda end: abs(end - cut))
            self.world.new_link()

    @rule(each=spans, gap=st.sampled_from([0, 0, 0, 2]))
    def produce(self, each, gap):
        self.world.produce(*each, gap=gap)

    @precondition(lambda self: self.world.locates)
    @rule()
    def locate(self):
        self.world.locate()

    @precondition(lambda self: self.world.link.wants_fetch)
    @rule(most=st.integers(1, 4))
    def ask(self, most):
        self.world.ask(most)

    @precondition(lambda self: self.world.fetches)
    @rule()
    def fetched(self):
        self.world.fetched()

    @precondition(lambda self: self.world.replies)
    @rule()
    def reply(self):
        self.world.reply()

    @precondition(lambda self: self.world.wire)
    @rule()
    def target_cannot(self):
        self.world.target_cannot()

    @rule()
    def lose_connection(self):
        self.world.lose_connection()

    @precondition(lambda self: self.world.zombies)
    @rule(number=st.integers(0, 99))
    def zombie_arrives(self, number):
        self.world.zombie_arrives(number)

    @invariant()
    def the_target_is_a_prefix_of_the_source(self):
        target = self.world.target
        assert target == self.world.source[: len(target)]

    @invariant()
    def nothing_is_reported_appended_that_is_not(self):
        assert self.world.link.appended_end <= self.world.target_end

    @invariant()
    def nothing_stops_it(self):
        assert self.world.link.state is not LinkState.STOPPED, self.world.link.problem

    def teardown(self):
        if not hasattr(self, "world"):
            return
        world = self.world
        world.settle()
        end = world.source_end if world.cut is None else world.cut
        assert [b for b in world.source if b.base < end] == world.target
        assert world.cut is None or world.link.state is LinkState.FINISHED


class Meddling(OneLink):
    """The same with another producer at the target, or a source that loses records."""

    @initialize(first=st.lists(ones, max_size=5))
    def begin(self, first):
        self.world = World()
        for each in first:
            self.world.produce(*each)

    @rule(each=ones)
    def produce(self, each):
        self.world.produce(*each)

    @precondition(lambda self: self.world.link.wants_fetch)
    @rule()
    def ask(self):
        self.world.ask(1)

    @precondition(lambda self: self.world.target)
    @rule()
    def another_producer_writes_to_the_target(self):
        self.world.write_to_target()

    @rule(count=st.integers(1, 3), others=st.integers(0, 4))
    def the_source_loses_its_tail(self, count, others):
        self.world.lose_source_tail(count)
        self.world.produce(*[1] * others)

    @invariant()
    def nothing_is_written_behind_a_foreign_record(self):
        target, foreign = self.world.target, self.world.foreign
        if foreign:
            assert target[target.index(foreign[0]) :] == foreign

    @invariant()
    def the_target_is_what_the_source_was_at_some_time(self):
        copied = self.world.copied
        held = [self.world.source, *self.world.versions]
        assert any(copied == version[: len(copied)] for version in held)

    def teardown(self):
        if not hasattr(self, "world"):
            return
        world = self.world
        world.settle()
        if not world.source or world.source_end < world.target_end:
            return  # it may still be waiting for a source that comes back
        if world.target != world.source[: len(world.target)]:
            assert world.link.state is LinkState.STOPPED


class Skipping(OneLink):
    """A source that deletes records before they are copied, the policy skip, kills, and a ledger that may fail."""

    @initialize(first=st.lists(ones, max_size=5))
    def begin(self, first):
        self.world = World(gap_policy=GapPolicy.SKIP)
        for each in first:
            self.world.produce(*each)

    @rule(each=ones)
    def produce(self, each):
        self.world.produce(*each)

    @rule(count=st.integers(1, 4))
    def the_source_deletes_its_oldest_records(self, count):
        self.world.age_out(count)

    @precondition(lambda self: self.world.locates)
    @rule()
    def locate(self):
        self.world.locate()

    @precondition(lambda self: self.world.link.wants_fetch)
    @rule()
    def ask(self):
        self.world.ask(1)

    @precondition(lambda self: self.world.to_record)
    @rule()
    def write_ledger(self):
        self.world.write_ledger()

    @precondition(lambda self: self.world.to_record)
    @rule()
    def ledger_fails(self):
        self.world.ledger_fails()

    @precondition(lambda self: self.world.acknowledged)
    @rule()
    def acknowledge_gap(self):
        self.world.acknowledge_gap()

    @invariant()
    def every_gap_of_the_target_is_in_the_ledger_as_it_is(self):
        target, ledger = self.world.target, self.world.ledger
        for before, after in pairwise(target):
            if before.end != after.base:
                assert before.end in ledger
                assert ledger[before.end].until == after.base

    @invariant()
    def an_entry_is_about_offsets_that_the_target_does_not_have(self):
        for gap in self.world.ledger.values():
            assert not any(b.base < gap.until and b.end > gap.first for b in self.world.target)

    def teardown(self):
        if not hasattr(self, "world"):
            return
        self.world.settle()
        assert self.world.link.state is not LinkState.STOPPED
        assert not self.world.source or self.world.target_end == self.world.source_end


Copying.TestCase.settings = Meddling.TestCase.settings = Skipping.TestCase.settings = settings(
    max_examples=examples(200), stateful_step_count=40, deadline=None
)
TestCopying = Copying.TestCase
TestMeddling = Meddling.TestCase
TestSkipping = Skipping.TestCase
