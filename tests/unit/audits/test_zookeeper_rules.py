"""The rules over a cluster's znodes: an ordinary history passes, and a broken rule is named."""

from __future__ import annotations

import json

import pytest

from tests.audits.zookeeper_journal import Change
from tests.audits.zookeeper_rules import ClusterAudit

BROKER_SESSION = {1: 0x11, 2: 0x22, 3: 0x33}
STATE = "/c/brokers/topics/t/partitions/0/state"


class ClusterHistory:
    """Changes in the making: broker 1 is the controller of epoch 1; t-0 is led by 1, ISR 1, 2, 3."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._zxid = 0
        for broker, session in BROKER_SESSION.items():
            self.write(session, f"/c/brokers/ids/{broker}", b"{}", created=True, ephemeral=True)
        self.write(0x11, "/c/controller_epoch", b"0", created=True)
        self.elect(1, 1)
        topic = json.dumps({"partitions": {"0": [1, 2, 3]}}).encode()
        self.write(0x11, "/c/brokers/topics/t", topic, created=True)
        self.state(1, 0, [1, 2, 3], created=True)

    def write(
        self, session: int, path: str, data: bytes | None, *, created: bool = False,
        ephemeral: bool = False, same_step: bool = False,
    ) -> ClusterHistory:  # fmt: skip
        self._zxid += not same_step
        self.changes.append(Change(self._zxid, self._zxid, session, path, data, created, ephemeral))
        return self

    def elect(self, broker: int, epoch: int) -> ClusterHistory:
        session = BROKER_SESSION[broker]
        data = json.dumps({"brokerid": broker}).encode()
        self.write(session, "/c/controller", data, created=True, ephemeral=True)
        return self.write(session, "/c/controller_epoch", b"%d" % epoch, same_step=True)

    def state(
        self, leader: int, leader_epoch: int, isr: list[int], controller_epoch: int = 1, *,
        by: int = 1, created: bool = False, elr: list[int] | None = None,
    ) -> ClusterHistory:  # fmt: skip
        value: dict[str, object] = {
            "leader": leader, "leader_epoch": leader_epoch, "isr": isr,
            "controller_epoch": controller_epoch,
        }  # fmt: skip
        if elr:
            value["elr"] = {str(broker): 7 for broker in elr}
        return self.write(BROKER_SESSION[by], STATE, json.dumps(value).encode(), created=created)

    def rules(self, **options: bool) -> list[str]:
        audit = ClusterAudit("/c", **options).follow(self.changes)
        return [problem.rule for problem in audit.problems]


def test_an_ordinary_history_passes_and_its_elections_are_known() -> None:
    history = ClusterHistory().state(1, 0, [1, 3]).state(1, 0, [1, 2, 3])
    history.write(0x11, "/c/controller", None).elect(2, 2)
    history.state(2, 1, [2, 3], 2, by=2).state(2, 1, [1, 2, 3], 2, by=2)
    history.state(-1, 2, [2], 2, by=2).state(2, 3, [2], 2, by=2)
    audit = ClusterAudit("/c").follow(history.changes)
    assert audit.problems == []
    assert [change.state.leader for change in audit.history if change.elected] == [1, 2, 2]
    assert [broker for _, broker in audit.controllers] == [1, 2]


def test_an_eligible_replica_that_left_the_isr_may_lead() -> None:
    assert ClusterHistory().state(1, 1, [1], elr=[3]).state(3, 2, [3]).rules() == []
    assert ClusterHistory().state(1, 1, [1], elr=[3]).state(2, 2, [2]).rules() == [
        "unclean-election"
    ]


def test_another_cluster_on_the_same_ensemble_is_none_of_ours() -> None:
    history = ClusterHistory()
    history.write(0x99, "/cc/controller_epoch", b"7", created=True)
    history.write(0x99, "/cc/controller_epoch", b"9")
    assert history.rules() == []


def deposed() -> ClusterHistory:
    """Broker 1 was the controller; now it is broker 2, epoch 2."""
    return ClusterHistory().write(0x11, "/c/controller", None).elect(2, 2)


@pytest.mark.parametrize(
    ("history", "rule"),
    [
        (ClusterHistory().write(0x11, "/c/controller", None).elect(2, 3), "controller-epoch"),
        (ClusterHistory().state(2, 2, [2, 3]), "leader-epoch-step"),
        (ClusterHistory().state(2, 0, [2, 3]), "leader-epoch-step"),
        (ClusterHistory().state(2, 1, [2, 3]).state(1, 0, [1]), "leader-epoch-fell"),
        (ClusterHistory().state(1, 0, [1, 4]), "isr-not-replicas"),
        (ClusterHistory().state(1, 0, []), "isr-empty"),
        (ClusterHistory().state(2, 1, [1, 3]), "leader-not-in-isr"),
        (ClusterHistory().state(1, 0, [1, 2]).state(3, 1, [3]), "unclean-election"),
        (deposed().state(2, 1, [2, 3], 1, by=1), "zombie-controller"),
        (deposed().state(2, 1, [2, 3], 1, by=2), "stale-controller-epoch"),
        (ClusterHistory().state(1, 0, [1, 2], 5), "future-controller-epoch"),
        (ClusterHistory().state(1, 0, [1, 2], by=3), "foreign-isr-write"),
        (ClusterHistory().write(0x44, "/c/brokers/ids/4", b"{}", created=True), "not-ephemeral"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_broken_rule_is_named(history: ClusterHistory, rule: str) -> None:
    assert history.rules() == [rule]


def test_where_unclean_election_is_allowed_it_is_no_fault() -> None:
    assert ClusterHistory().state(1, 0, [1, 2]).state(3, 1, [3]).rules(unclean_election=True) == []
