"""Lost answers, late requests, kills, fenced mirrors: each record is visible once, in order (transaction.py, 1-4)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mirrormaker.transaction import State
from tests.kit.property_tests import examples
from tests.kit.transaction_world import PARTITIONS, World

numbers = st.integers(0, 99)


class Transactions(RuleBasedStateMachine):
    """Mirrors of one direction, and everything that may happen to their requests."""

    world: World

    @initialize(records=st.integers(0, 6))
    def begin_world(self, records):
        self.world = World()
        self.produce(0, records)
        self.world.start()

    @rule(number=st.integers(0, 1), records=st.integers(1, 4))
    def produce(self, number, records):
        source = self.world.sources[PARTITIONS[number]]
        source += range(len(source), len(source) + records)

    @precondition(lambda self: any(m.machine.state is State.IDLE for m in self.world.mirrors))
    @rule(number=numbers, most=st.integers(1, 5))
    def begin(self, number, most):
        idle = [m for m in self.world.mirrors if m.machine.state is State.IDLE]
        idle[number % len(idle)].begin(most)

    @rule(turns=st.integers(1, 20))
    def work(self, turns):
        for _ in range(turns):
            for mirror in self.world.mirrors:
                if mirror.machine.state is State.IDLE:
                    mirror.begin(3)
            if self.world.answers:
                self.world.answer(0)
            elif self.world.wire:
                self.world.deliver(0)
        self.world.target.apply_marker()

    @precondition(lambda self: self.world.wire)
    @rule(number=numbers)
    def request_arrives(self, number):
        self.world.deliver(number % len(self.world.wire))

    @precondition(lambda self: self.world.answers)
    @rule(number=numbers)
    def answer_arrives(self, number):
        self.world.answer(number % len(self.world.answers))

    @precondition(lambda self: self.world.mirrors)
    @rule(number=numbers)
    def mirror_gives_up_waiting(self, number):
        mirror = self.world.mirrors[number % len(self.world.mirrors)]
        mirror.fail(mirror.machine.generation)

    @precondition(lambda self: self.world.answers)
    @rule(number=numbers)
    def answer_is_lost(self, number):
        answer = self.world.answers.pop(number % len(self.world.answers))
        answer.request.mirror.fail(answer.request.effect.generation)

    @precondition(lambda self: self.world.wire)
    @rule(number=numbers)
    def request_is_lost(self, number):
        request = self.world.wire.pop(number % len(self.world.wire))
        request.mirror.fail(request.effect.generation)

    @precondition(lambda self: self.world.mirrors)
    @rule(number=numbers)
    def mirror_is_killed(self, number):
        self.world.kill(self.world.mirrors[number % len(self.world.mirrors)])
        if not self.world.mirrors:
            self.world.start()

    @precondition(lambda self: len(self.world.mirrors) < 2)
    @rule()
    def another_mirror_starts(self):
        self.world.start()

    @rule()
    def transaction_times_out(self):
        self.world.wait()

    @precondition(lambda self: self.world.target.unapplied)
    @rule()
    def group_applies_the_marker(self):
        self.world.target.apply_marker()

    @invariant()
    def what_is_visible_is_the_source_up_to_the_position(self):
        target = self.world.target
        for tp in PARTITIONS:
            position = target.unapplied.get(tp, target.positions.get(tp))
            end = 0 if position is None else position.offset
            assert target.visible(tp) == self.world.sources[tp][:end]

    def teardown(self):
        if hasattr(self, "world"):
            self.world.settle()
            for tp in PARTITIONS:
                assert self.world.target.visible(tp) == self.world.sources[tp]


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(
    max_examples=examples(40), stateful_step_count=40, deadline=None
)
