"""What a report of kaudit proves about partitions up to their cuts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kclient.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Proof:
    """What kaudit has proven: every record that both logs have is the same."""

    run_id: str
    aged_out: int
    """Offsets that were not compared, because only one log still has them."""

    def line(self) -> str:
        """Return what was not compared; "" if all was."""
        if not self.aged_out:
            return ""
        return (
            f"kaudit did not compare {self.aged_out} offsets: only one cluster still has them (retention, "
            "DeleteRecords). It left no others open"
        )


def not_proven(
    report: Mapping[str, Any],
    cuts: Mapping[TopicPartition, int],
    *,
    source_id: str,
    target_id: str,
) -> str:
    """Return what kaudit's *report* leaves open of the partitions below *cuts*; "" if it proves all of them.

    Offsets that only one log still has cannot be compared: logs under retention begin at different offsets. They leave
    nothing open, and `aged_out_of` has their number.
    """
    ids = tuple((report.get(side) or {}).get("cluster_id") for side in ("source", "target"))
    if ids != (source_id, target_id):
        return f"the report compares clusters {ids[0]} and {ids[1]}"
    verdict = report.get("verdict")
    only_aged_out = verdict == "INCOMPLETE" and _is_only_aged_out(report)
    if only_aged_out and not report["totals"]["compared"]:
        return "no offset was compared: each is in one log only"
    if verdict != "CONSISTENT" and not only_aged_out:
        return f"the verdict is {verdict}"
    proven = {
        TopicPartition(topic["topic"], each["partition"]): _proven_end(each)
        for topic in report["topics"]
        for each in topic["partitions"]
    }
    open_ = [
        f"{tp} is proven up to {proven[tp]}, not to {cut}" if tp in proven else f"{tp} is not in it"
        for tp, cut in cuts.items()
        if proven.get(tp, -1) < cut
    ]
    return "; ".join(open_)


def _is_only_aged_out(report: Mapping[str, Any]) -> bool:
    """Return whether the only offsets in scope that were not compared are those that one log has no longer."""
    totals = report["totals"]
    left = totals["in_scope"] - totals["compared"] - totals["explained"]
    problems = (
        totals["not_read"],
        totals["unknown_partitions"],
        *totals["unreadable"],
        *totals["findings"].values(),
        *totals["different"].values(),
    )
    # Besides 0 the exit codes have each limit that was exceeded: 5 is that of coverage, by offsets that aged out.
    return left == totals["aged_out"] and not any(problems) and {*report["exit_codes"]} <= {0, 5}


def _proven_end(partition: Mapping[str, Any]) -> int:
    """Return the end of the offsets of which the report leaves nothing open but those that aged out.

    `proven_up_to` ends at the first offset that was not read. In a report without unreadable offsets and findings these
    were deleted during the audit, and everything else below both last stable offsets was compared.
    """
    if not partition.get("unread_ranges"):
        return int(partition["proven_up_to"])
    return int(min([partition["high"], *(partition["last_stable"] or {}).values()]))


def aged_out_of(report: Mapping[str, Any]) -> int:
    """Return how many offsets kaudit's *report* did not compare, because only one log still has them."""
    return int(report["totals"]["aged_out"])
