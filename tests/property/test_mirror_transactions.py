"""Lost answers, late requests, kills, fenced mirrors: each record is visible once, in order (transaction.py, 1-4)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mirrormaker.transaction import State
from tests.kit.mirror_transaction_model import PARTITIONS, TransactionModel
from tests.kit.property_tests import examples

numbers = st.integers(0, 99)


class Transactions(RuleBasedStateMachine):
    """Mirrors of one direction, and everything that may happen to their requests."""

    model: TransactionModel

    @initialize(records=st.integers(0, 6))
    def begin_world(self, records):
        self.model = TransactionModel()
        self.produce(0, records)
        self.model.start()

    @rule(number=st.integers(0, 1), records=st.integers(1, 4))
    def produce(self, number, records):
        source = self.model.sources[PARTITIONS[number]]
        source += range(len(source), len(source) + records)

    @precondition(lambda self: any(m.machine.state is State.IDLE for m in self.model.mirrors))
    @rule(number=numbers, most=st.integers(1, 5))
    def begin(self, number, most):
        idle = [m for m in self.model.mirrors if m.machine.state is State.IDLE]
        idle[number % len(idle)].begin(most)

    @rule(turns=st.integers(1, 20))
    def work(self, turns):
        for _ in range(turns):
            for mirror in self.model.mirrors:
                if mirror.machine.state is State.IDLE:
                    mirror.begin(3)
            if self.model.answers:
                self.model.answer(0)
            elif self.model.wire:
                self.model.deliver(0)
        self.model.target.apply_marker()

    @precondition(lambda self: self.model.wire)
    @rule(number=numbers)
    def request_arrives(self, number):
        self.model.deliver(number % len(self.model.wire))

    @precondition(lambda self: self.model.answers)
    @rule(number=numbers)
    def answer_arrives(self, number):
        self.model.answer(number % len(self.model.answers))

    @precondition(lambda self: self.model.mirrors)
    @rule(number=numbers)
    def mirror_gives_up_waiting(self, number):
        mirror = self.model.mirrors[number % len(self.model.mirrors)]
        mirror.fail(mirror.machine.generation)

    @precondition(lambda self: self.model.answers)
    @rule(number=numbers)
    def answer_is_lost(self, number):
        answer = self.model.answers.pop(number % len(self.model.answers))
        answer.request.mirror.fail(answer.request.effect.generation)

    @precondition(lambda self: self.model.wire)
    @rule(number=numbers)
    def request_is_lost(self, number):
        request = self.model.wire.pop(number % len(self.model.wire))
        request.mirror.fail(request.effect.generation)

    @precondition(lambda self: self.model.mirrors)
    @rule(number=numbers)
    def mirror_is_killed(self, number):
        self.model.kill(self.model.mirrors[number % len(self.model.mirrors)])
        if not self.model.mirrors:
            self.model.start()

    @precondition(lambda self: len(self.model.mirrors) < 2)
    @rule()
    def another_mirror_starts(self):
        self.model.start()

    @rule()
    def transaction_times_out(self):
        self.model.wait()

    @precondition(lambda self: self.model.target.unapplied)
    @rule()
    def group_applies_the_marker(self):
        self.model.target.apply_marker()

    @invariant()
    def what_is_visible_is_the_source_up_to_the_position(self):
        target = self.model.target
        for tp in PARTITIONS:
            position = target.unapplied.get(tp, target.positions.get(tp))
            end = 0 if position is None else position.offset
            assert target.visible(tp) == self.model.sources[tp][:end]

    def teardown(self):
        if hasattr(self, "model"):
            self.model.settle()
            for tp in PARTITIONS:
                assert self.model.target.visible(tp) == self.model.sources[tp]


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(
    max_examples=examples(40), stateful_step_count=40, deadline=None
)
