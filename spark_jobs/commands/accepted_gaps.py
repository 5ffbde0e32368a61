"""Reads the file of `--accepted-gaps`: a JSON object a line, also as `kmirror gaps --format json` prints them.

A line that an operator writes has the audit's name of a topic. A line of the ledger has the name at the target: it can
have a prefix, or be another one since the topic was created again. Such a line has the source's cluster id. The command
prints the ledgers of all flows, in which one name may be that of many topics. So the ids of a line are compared.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kclient.mirror_ledger import GAP
from spark_jobs.accounting import AcceptedGap
from spark_jobs.snapshot import WHOLE_TOPIC, ClusterSnapshot

_INT32 = 1 << 31
_INT64 = 1 << 63


class AcceptedLine(NamedTuple):
    """A gap as the file has it."""

    gap: AcceptedGap
    at_target: bool
    """Whether the topic has its name at the target: the line is one of the mirror's ledger."""
    source_cluster_id: str = ""
    """Empty if unknown."""
    target_topic_id: str = ""
    """Empty if unknown."""


class Unmatched(NamedTuple):
    """A gap as the file has it, and why it has no effect."""

    gap: AcceptedGap
    reason: str


class AcceptedHere(NamedTuple):
    """The gaps of a file with the audit's names, and those without effect."""

    gaps: tuple[AcceptedGap, ...]
    unmatched: tuple[Unmatched, ...]
    unchecked: tuple[tuple[AcceptedGap, str], ...] = ()
    """Gaps with the topic id of their line. That of the target is unknown: a later look may be the first to know it."""

    def since(self, earlier: AcceptedHere) -> AcceptedHere:
        """Return this without the lines that were known to be without effect *earlier*."""
        known = set(earlier.unmatched)
        return self._replace(unmatched=tuple(each for each in self.unmatched if each not in known))

    @property
    def notice(self) -> str:
        """What an operator has to know about `unmatched`; "" if there is nothing."""
        if not self.unmatched:
            return ""
        by_reason: dict[str, list[AcceptedGap]] = defaultdict(list)
        for gap, reason in self.unmatched:
            by_reason[reason].append(gap)
        each = [
            f"{len(gaps):,} {reason}, so without effect: {_first(gaps)}"
            for reason, gaps in by_reason.items()
        ]
        return f"--accepted-gaps: {'; '.join(each)}"


def _first(gaps: Sequence[AcceptedGap]) -> str:
    first = [f"{gap.topic_partition} from {gap.low} until {gap.high}" for gap in gaps[:5]]
    return ", ".join(first) + (", ..." if len(gaps) > len(first) else "")


def accepted_here(
    lines: Sequence[AcceptedLine], source: ClusterSnapshot, target: ClusterSnapshot
) -> AcceptedHere:
    """Return the gaps of *lines* with the names that their topics have in an audit of *source* and *target*."""
    known = {
        *source.ranges,
        *target.ranges,
        *source.unreadable,
        *target.unreadable,
    }
    gaps, unmatched, unchecked = [], [], []
    for line in lines:
        gap = line.gap
        name = target.name_of(gap.topic) if line.at_target else gap.topic
        reason = ""
        if _are_others(line.source_cluster_id, source.cluster_id):
            reason = f"of another source cluster than {source.cluster_id}"
        elif name is None or not known & {(name, gap.partition), (name, WHOLE_TOPIC)}:
            reason = "in no partition in scope"
        elif _are_others(line.target_topic_id, target.topic_ids.get(name, "")):
            reason = "of another topic id at the target"
        if reason or name is None:
            unmatched.append(Unmatched(gap, reason))
        elif line.target_topic_id and not target.topic_ids.get(name):
            unchecked.append((gap._replace(topic=name), line.target_topic_id))
        else:
            gaps.append(gap._replace(topic=name))
    return AcceptedHere(tuple(gaps), tuple(unmatched), tuple(unchecked))


def _are_others(of_line: str, here: str) -> bool:
    """Return whether both ids are known, and are not the same."""
    return bool(of_line and here and of_line != here)


def read_accepted_gaps(path: Path | None) -> tuple[AcceptedLine, ...]:
    """Return the gaps in the file *path*, none for None; raise ValueError that names the option and the line."""
    if path is None:
        return ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(f"--accepted-gaps {path}: {problem}") from None
    gaps = []
    for number, line in enumerate(lines, 1):
        try:
            gap = gap_of(line)
        except ValueError as problem:
            raise ValueError(f"--accepted-gaps {path}, line {number}: {problem}") from None
        if gap is not None:
            gaps.append(gap)
    return tuple(gaps)


def gap_of(line: str) -> AcceptedLine | None:
    """Return the gap of one line, None for an entry of the ledger that explains nothing; raise ValueError."""
    try:
        entry = json.loads(line)
    except RecursionError:
        raise ValueError("JSON with too many levels") from None
    if not isinstance(entry, dict):
        raise ValueError("expected a JSON object")
    if entry.get("type", GAP) != GAP:
        return None
    low, high = _whole(entry, "from", _INT64), _whole(entry, "until", _INT64)
    if low > high:
        raise ValueError(f"from {low} is above until {high}, which is exclusive")
    gap = AcceptedGap(
        _text(entry, "topic"), _whole(entry, "partition", _INT32), low, high, _cause(entry)
    )
    if low == high:
        return None  # kmirror's ledger has empty gaps.
    return AcceptedLine(
        gap,
        at_target="source_cluster_id" in entry,
        source_cluster_id=_id(entry, "source_cluster_id"),
        target_topic_id=_id(entry, "target_topic_id"),
    )


def _whole(entry: Mapping[str, Any], name: str, limit: int) -> int:
    """Return a number from 0 to below *limit*. A number with a fraction would be cut, and name other offsets."""
    value = _value(entry, name)
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f"{name} {value!r} is not a whole number from 0 to {limit - 1}")
    return value


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = _value(entry, name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} {value!r} is not a text")
    return value


def _id(entry: Mapping[str, Any], name: str) -> str:
    """Return an id; "" if the line has none, or the ledger did not know it."""
    return "" if entry.get(name, "") == "" else _text(entry, name)


def _cause(entry: Mapping[str, Any]) -> str:
    """Return the cause, which may be empty: an entry of the ledger may have none."""
    return "" if _value(entry, "cause") == "" else _text(entry, "cause")


def _value(entry: Mapping[str, Any], name: str) -> Any:
    if name not in entry:
        raise ValueError(f"{name} is missing")
    return entry[name]
