"""Runs kaudit as the gate of a command: the command continues only if kaudit proves every partition."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from kclient.types import TopicPartition
from mirrormaker.audit_proof import Proof, aged_out_of, not_proven
from mirrormaker.command_exit import Refused
from mirrormaker.config import FlowConfig
from mirrormaker.patterns import escaped

_CONSISTENT, _AGED_OUT = 0, 5
"""Exit codes of kaudit with a report that may prove the copy."""


async def proven_by_audit(
    reactor: Any,
    config: FlowConfig,
    out: Path,
    cuts: Mapping[TopicPartition, int],
    *,
    copies: Mapping[str, str] | None = None,
    source_id: str,
    target_id: str,
    options: Sequence[str],
) -> Proof:
    """Audit the topics of *cuts* with a report in *out*; return what it proves.

    *copies* has their names at the target; without it they are the same. Raise `Refused` unless the verdict is
    CONSISTENT, but for offsets that only one log still has, and every partition is proven up to its cut.
    """
    topics = sorted({tp.topic for tp in cuts})
    arguments = [
        *("-m", "spark_jobs", "reconcile", "--quiet", "--out", str(out), *options),
        *("--source", config.source_client.bootstrap_servers),
        *("--target", config.target_client.bootstrap_servers),
        *("--topics", "|".join(map(escaped, topics))),
        *("--names", f"{config.source},{config.target}"),
        *(
            "--target-prefix",
            target_form({name: (copies or {}).get(name, name) for name in topics}),
        ),
    ]
    began = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kaudit = _Kaudit()
    reactor.spawnProcess(kaudit, sys.executable, [sys.executable, *arguments], env=None)
    ended = await kaudit.ended
    if ended.signal is not None:
        raise Refused(f"kaudit was ended by signal {ended.signal}")
    if ended.exitCode not in (_CONSISTENT, _AGED_OUT):
        last = (kaudit.errors or kaudit.written).decode(errors="replace").strip().splitlines()[-1:]
        raise Refused(f"kaudit ended with exit code {ended.exitCode}: {' '.join(last)}")
    try:
        report = json.loads((out / "report.json").read_text())
        started_at = report["meta"]["started_at"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise Refused(f"kaudit's report in {out} cannot be read: {problem}") from problem
    if started_at < began:
        # A command that was killed leaves its kaudit running.
        raise Refused(
            f"{out} has the report of an earlier kaudit, which runs still or has just ended"
        )
    left_open = not_proven(report, cuts, source_id=source_id, target_id=target_id)
    if left_open:
        raise Refused(f"kaudit's report: {left_open}")
    return Proof(str(report["meta"]["run_id"]), aged_out_of(report))


class _Kaudit(ProcessProtocol):
    """The process. Cancelling `ended` ends it: a signal for kmirror alone does not reach it."""

    def __init__(self) -> None:
        self.written = self.errors = b""
        self.ended: Deferred[Any] = Deferred(self._terminate)
        """Fires with a ProcessDone or a ProcessTerminated."""

    def outReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        self.written += data

    def errReceived(self, data: bytes) -> None:  # noqa: N802
        self.errors += data

    def processEnded(self, reason: Failure) -> None:  # noqa: N802
        if not self.ended.called:
            self.ended.callback(reason.value)

    def _terminate(self, _: object) -> None:
        transport: Any = self.transport
        with suppress(ProcessExitedAlready):
            transport.signalProcess("TERM")


def target_form(copies: Mapping[str, str]) -> str:
    """Return kaudit's --target-prefix for topics with these names at the target. Raise `Refused` if there is none.

    >>> target_form({"orders": "orders.from.east", "a": "a.from.east"})
    '{}.from.east'
    """
    forms: list[tuple[str, str]] | None = None
    for name, copy in copies.items():
        places = [found.start() for found in re.finditer(f"(?={re.escape(name)})", copy)]
        own = [(copy[:at], copy[at + len(name) :]) for at in places]
        forms = own if forms is None else [each for each in forms if each in own]
        if not forms:
            raise Refused(
                f"kaudit cannot prove the copy: no form such as 'east.{{}}' names {name} at the target {copy}, "
                "and the others as they are. --no-audit copies without the proof"
            )
    head, tail = forms[0] if forms else ("", "")
    return f"{head}{{}}{tail}" if head or tail else ""
