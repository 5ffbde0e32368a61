"""The suites of measurements. A suite returns its figures and notes about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.results import Figure
from benchmarks.suites.audit import audit_suite
from benchmarks.suites.broker import broker_suite
from benchmarks.suites.clients import clients_suite
from benchmarks.suites.groups import groups_suite
from benchmarks.suites.growth import growth_suite
from benchmarks.suites.mirror import mirror_suite
from benchmarks.suites.replication import replication_suite
from benchmarks.suites.transactions import transactions_suite

Suite = Callable[[Path, int, int], tuple[list[Figure], list[str]]]
"""(directory, rounds, divisor of the work) -> (figures, notes)."""

SUITES: dict[str, Suite] = {
    "broker": broker_suite,
    "clients": clients_suite,
    "groups": groups_suite,
    "mirror": mirror_suite,
    "audit": audit_suite,
    "growth": growth_suite,
    "replication": replication_suite,
    "transactions": transactions_suite,
}
