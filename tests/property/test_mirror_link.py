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
from tests.kit.link_model import LinkModel
from tests.kit.property_tests import examples

spans = st.lists(st.integers(1, 3), min_size=1, max_size=4)
ones = st.lists(st.just(1), min_size=1, max_size=4)


class OneLink(RuleBasedStateMachine):
    """What may happen to every link."""

    model: LinkModel

    @precondition(lambda self: self.model.link.has_append)
    @rule()
    def send(self):
        self.model.send()

    @precondition(lambda self: self.model.wire)
    @rule()
    def target_handles(self):
        self.model.target_handles()

    @rule(appends=st.integers(1, 5))
    def fill_pipeline(self, appends):
        self.model.fill_pipeline(appends)

    @rule(turns=st.integers(1, 10))
    def work(self, turns):
        for _ in range(turns):
            self.model.step()

    @rule()
    def killed(self):
        self.model.new_link()


class Copying(OneLink):
    """One partition, one mirror at a time, and everything that may happen to them but foreign hands."""

    @initialize(first=st.lists(spans, max_size=6), cut=st.none() | st.integers(0, 12))
    def begin(self, first, cut):
        self.model = LinkModel()
        for each in first:
            self.model.produce(*each)
        ends = [0, *(b.end for b in self.model.source)]
        if cut is not None:
            self.model.cut = min(ends, key=lambda end: abs(end - cut))
            self.model.new_link()

    @rule(each=spans, gap=st.sampled_from([0, 0, 0, 2]))
    def produce(self, each, gap):
        self.model.produce(*each, gap=gap)

    @precondition(lambda self: self.model.locates)
    @rule()
    def locate(self):
        self.model.locate()

    @precondition(lambda self: self.model.link.wants_fetch)
    @rule(most=st.integers(1, 4))
    def ask(self, most):
        self.model.ask(most)

    @precondition(lambda self: self.model.fetches)
    @rule()
    def fetched(self):
        self.model.fetched()

    @precondition(lambda self: self.model.replies)
    @rule()
    def reply(self):
        self.model.reply()

    @precondition(lambda self: self.model.wire)
    @rule()
    def target_cannot(self):
        self.model.target_cannot()

    @rule()
    def lose_connection(self):
        self.model.lose_connection()

    @precondition(lambda self: self.model.zombies)
    @rule(number=st.integers(0, 99))
    def zombie_arrives(self, number):
        self.model.zombie_arrives(number)

    @invariant()
    def the_target_is_a_prefix_of_the_source(self):
        target = self.model.target
        assert target == self.model.source[: len(target)]

    @invariant()
    def nothing_is_reported_appended_that_is_not(self):
        assert self.model.link.appended_end <= self.model.target_end

    @invariant()
    def nothing_stops_it(self):
        assert self.model.link.state is not LinkState.STOPPED, self.model.link.problem

    def teardown(self):
        if not hasattr(self, "model"):
            return
        model = self.model
        model.settle()
        end = model.source_end if model.cut is None else model.cut
        assert [b for b in model.source if b.base < end] == model.target
        assert model.cut is None or model.link.state is LinkState.FINISHED


class Meddling(OneLink):
    """The same with another producer at the target, or a source that loses records."""

    @initialize(first=st.lists(ones, max_size=5))
    def begin(self, first):
        self.model = LinkModel()
        for each in first:
            self.model.produce(*each)

    @rule(each=ones)
    def produce(self, each):
        self.model.produce(*each)

    @precondition(lambda self: self.model.link.wants_fetch)
    @rule()
    def ask(self):
        self.model.ask(1)

    @precondition(lambda self: self.model.target)
    @rule()
    def another_producer_writes_to_the_target(self):
        self.model.write_to_target()

    @rule(count=st.integers(1, 3), others=st.integers(0, 4))
    def the_source_loses_its_tail(self, count, others):
        self.model.lose_source_tail(count)
        self.model.produce(*[1] * others)

    @invariant()
    def nothing_is_written_behind_a_foreign_record(self):
        target, foreign = self.model.target, self.model.foreign
        if foreign:
            assert target[target.index(foreign[0]) :] == foreign

    @invariant()
    def the_target_is_what_the_source_was_at_some_time(self):
        copied = self.model.copied
        held = [self.model.source, *self.model.versions]
        assert any(copied == version[: len(copied)] for version in held)

    def teardown(self):
        if not hasattr(self, "model"):
            return
        model = self.model
        model.settle()
        if not model.source or model.source_end < model.target_end:
            return  # it may still be waiting for a source that comes back
        if model.target != model.source[: len(model.target)]:
            assert model.link.state is LinkState.STOPPED


class Skipping(OneLink):
    """A source that deletes records before they are copied, the policy skip, kills, and a ledger that may fail."""

    @initialize(first=st.lists(spans, max_size=5))
    def begin(self, first):
        self.model = LinkModel(gap_policy=GapPolicy.SKIP)
        for each in first:
            self.model.produce(*each)

    @rule(each=spans)
    def produce(self, each):
        self.model.produce(*each)

    @rule(count=st.integers(1, 4))
    def the_source_deletes_its_oldest_records(self, count):
        self.model.age_out(count)

    @rule(count=st.integers(1, 6))
    def records_of_the_source_are_deleted(self, count):
        self.model.delete_records(count)

    @precondition(lambda self: self.model.locates)
    @rule()
    def locate(self):
        self.model.locate()

    @precondition(lambda self: self.model.link.wants_fetch)
    @rule()
    def ask(self):
        self.model.ask(1)

    @precondition(lambda self: self.model.to_record)
    @rule()
    def write_ledger(self):
        self.model.write_ledger()

    @precondition(lambda self: self.model.to_record)
    @rule()
    def ledger_fails(self):
        self.model.ledger_fails()

    @precondition(lambda self: self.model.acknowledged)
    @rule()
    def acknowledge_gap(self):
        self.model.acknowledge_gap()

    @invariant()
    def every_gap_of_the_target_is_in_the_ledger_as_it_is(self):
        target, ledger = self.model.target, self.model.ledger
        for before, after in pairwise(target):
            if before.end != after.base:
                assert before.end in ledger
                assert ledger[before.end].until == after.base

    @invariant()
    def an_entry_is_about_offsets_that_the_target_does_not_have(self):
        for gap in self.model.ledger.values():
            assert not any(b.base < gap.until and b.end > gap.first for b in self.model.target)

    def teardown(self):
        if not hasattr(self, "model"):
            return
        self.model.settle()
        assert self.model.link.state is not LinkState.STOPPED
        assert not self.model.source or self.model.target_end == self.model.source_end


Copying.TestCase.settings = Meddling.TestCase.settings = Skipping.TestCase.settings = settings(
    max_examples=examples(200), stateful_step_count=40, deadline=None
)
TestCopying = Copying.TestCase
TestMeddling = Meddling.TestCase
TestSkipping = Skipping.TestCase
