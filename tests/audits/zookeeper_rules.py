"""Rules over every change of a cluster's znodes: allowed writers, and epochs that only grow.

Theory of operation
===================
The changes are followed one after another, those of one zxid together, for a multi is one step. What is known at each
step: the controller's epoch and session, the brokers' sessions, assignments and partition states.

Invariants that are judged:
1. /controller_epoch grows by one.
2. A partition's leader epoch never falls; a change of leader raises it by one.
3. ISR within the replicas; the leader in the ISR, or there is none.
4. A new leader comes from the ISR before, or from the eligible replicas beside it (`elr`), unless unclean election
   is allowed (S18).
5. Leader and leader epoch are changed by the session that holds /controller, under the current epoch;
   the ISR alone also by the leader's session.
6. No state is of a controller epoch that is not yet.
7. Broker ids and the controller are ephemeral.

In: changes in order   Out: problems, elections
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from tests.audits.problem import Problem
from tests.audits.zookeeper_journal import Change

_STATE = re.compile(r"/brokers/topics/([^/]+)/partitions/(\d+)/state")
_TOPIC = re.compile(r"/brokers/topics/([^/]+)")
_BROKER = re.compile(r"/brokers/ids/(\d+)")


class State(NamedTuple):
    """The content of a partition's state znode."""

    leader: int
    leader_epoch: int
    isr: frozenset[int]
    controller_epoch: int
    elr: frozenset[int] = frozenset()
    """Replicas that left the ISR with all committed records (KIP-966)."""


class StateChange(NamedTuple):
    """A partition's state at a time (ms, wall clock)."""

    time_ms: int
    zxid: int
    key: str
    state: State
    elected: bool
    """Whether this made a leader."""


@dataclass
class ClusterAudit:
    """Follows the changes below *chroot*."""

    chroot: str
    unclean_election: bool = False
    problems: list[Problem] = field(default_factory=list)
    history: list[StateChange] = field(default_factory=list)
    states: dict[tuple[str, int], State] = field(default_factory=dict)
    controllers: list[tuple[int, int]] = field(default_factory=list)
    """(time in ms, broker) of each that came into office."""
    _epoch: int | None = None
    _controller: int | None = None
    _brokers: dict[int, set[int]] = field(default_factory=dict)
    """Session -> the brokers it ever registered."""
    _replicas: dict[str, dict[int, frozenset[int]]] = field(default_factory=dict)

    def follow(self, changes: Iterable[Change]) -> ClusterAudit:
        """Judge all changes; return self."""
        for zxid, together in groupby(changes, key=attrgetter("zxid")):
            self._step(zxid, [one for one in together if one.path.startswith(self.chroot + "/")])
        return self

    def _problem(self, rule: str, zxid: int, where: str, text: str) -> None:
        self.problems.append(Problem(rule, f"zxid {zxid:#x} {where}", text))

    def _step(self, zxid: int, changes: list[Change]) -> None:
        states = []
        for change in changes:
            path = change.path.removeprefix(self.chroot)
            if match := _STATE.fullmatch(path):
                states.append(((match[1], int(match[2])), change))
            elif match := _TOPIC.fullmatch(path):
                self._assigned(match[1], change)
            elif match := _BROKER.fullmatch(path):
                self._registered(int(match[1]), change)
            elif path == "/controller":
                self._controller_changed(change)
            elif path == "/controller_epoch" and change.data is not None:
                self._epoch_changed(change)
        for key, change in states:
            self._state_changed(key, change)

    def _assigned(self, topic: str, change: Change) -> None:
        if change.data is None:
            self._replicas.pop(topic, None)
            return
        partitions = json.loads(change.data)["partitions"]
        self._replicas[topic] = {int(n): frozenset(ids) for n, ids in partitions.items()}

    def _registered(self, broker: int, change: Change) -> None:
        if change.data is None:
            return
        if change.created and not change.ephemeral:
            self._problem(
                "not-ephemeral", change.zxid, change.path, "a broker id outlives its broker"
            )
        self._brokers.setdefault(change.session, set()).add(broker)

    def _controller_changed(self, change: Change) -> None:
        self._controller = None if change.data is None else change.session
        if change.data is not None:
            if change.created and not change.ephemeral:
                self._problem(
                    "not-ephemeral", change.zxid, change.path, "the office outlives its holder"
                )
            self.controllers.append((change.time_ms, json.loads(change.data)["brokerid"]))

    def _epoch_changed(self, change: Change) -> None:
        epoch = int(change.data or b"0")
        if self._epoch is not None and epoch != self._epoch + 1:
            self._problem(
                "controller-epoch", change.zxid, change.path, f"{epoch} after {self._epoch}"
            )
        self._epoch = epoch

    def _state_changed(self, key: tuple[str, int], change: Change) -> None:
        before = self.states.get(key)
        if change.data is None:
            self.states.pop(key, None)
            return
        value = json.loads(change.data)
        state = self.states[key] = State(
            value["leader"],
            value["leader_epoch"],
            frozenset(value["isr"]),
            value["controller_epoch"],
            frozenset(map(int, value.get("elr", ()))),
        )
        where = f"{key[0]}-{key[1]}"
        led = before is None or (before.leader, before.leader_epoch) != (state.leader, state.leader_epoch)  # fmt: skip
        self.history.append(
            StateChange(change.time_ms, change.zxid, where, state, led and state.leader >= 0)
        )
        problem = self._wrong_in_itself(key, state)
        if problem is None and before is not None:
            problem = self._wrong_after(before, state)
        if problem is None:
            problem = self._wrong_author(change.session, state, led)
        if problem is not None:
            self._problem(problem[0], change.zxid, where, f"{problem[1]}: {before} -> {state}")

    def _wrong_in_itself(self, key: tuple[str, int], state: State) -> tuple[str, str] | None:
        replicas = self._replicas.get(key[0], {}).get(key[1])
        if replicas is not None and not state.isr <= replicas:
            return "isr-not-replicas", f"replicas are {sorted(replicas)}"
        if not state.isr:
            return "isr-empty", "the ISR is empty"
        if state.leader >= 0 and state.leader not in state.isr:
            return "leader-not-in-isr", f"leader {state.leader}"
        if self._epoch is not None and state.controller_epoch > self._epoch:
            return "future-controller-epoch", f"the epoch is {self._epoch}"
        return None

    def _wrong_after(self, before: State, state: State) -> tuple[str, str] | None:
        if state.leader_epoch < before.leader_epoch:
            return "leader-epoch-fell", f"{state.leader_epoch} after {before.leader_epoch}"
        if state.leader != before.leader and state.leader_epoch != before.leader_epoch + 1:
            return "leader-epoch-step", f"{state.leader_epoch} after {before.leader_epoch}"
        eligible = before.isr | before.elr | {before.leader}
        if state.leader >= 0 and state.leader not in eligible:
            return None if self.unclean_election else ("unclean-election", f"leader {state.leader}")
        return None

    def _wrong_author(self, session: int, state: State, led: bool) -> tuple[str, str] | None:
        if led:
            if session != self._controller:
                return "zombie-controller", f"session {session:#x} does not hold /controller"
            if state.controller_epoch != self._epoch:
                return "stale-controller-epoch", f"the epoch is {self._epoch}"
        elif session != self._controller and state.leader not in self._brokers.get(session, ()):
            return "foreign-isr-write", f"session {session:#x} is neither leader's nor controller's"
        return None
