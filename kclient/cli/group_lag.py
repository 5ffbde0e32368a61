"""The offsets and the lag of groups as rows, for several commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


async def offset_rows(admin: Any, described: Any) -> list[dict[str, Any]]:
    """Return a row for each partition that the group has an offset or a member of."""
    # Committed offsets first, log ends second: in the other order a lag could be negative.
    committed = await admin.list_group_offsets(described.group_id)
    owners = {tp: m for m in described.members for tp in m.assignment}
    places = sorted(committed.keys() | owners.keys())
    # A group may have offsets of deleted topics.
    ends = (
        await admin.list_offsets(dict.fromkeys(places, "latest"), timeout=5.0, raise_errors=False)
        if places
        else {}
    )
    rows = []
    for tp in places:
        at, member = committed.get(tp), owners.get(tp)
        end = getattr(ends[tp], "offset", None)
        rows.append(
            {
                "group": described.group_id,
                "topic": tp.topic,
                "partition": tp.partition,
                "current_offset": None if at is None else at.offset,
                "log_end_offset": end,
                "lag": None if at is None or end is None else max(0, end - at.offset),
                "consumer_id": member.member_id if member else None,
                "host": member.host if member else None,
                "client_id": member.client_id if member else None,
            }
        )
    return rows


def lag_row(described: Any, offsets: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the total lag of a group as a row; *offsets* are its `offset_rows`."""
    lags = [row["lag"] for row in offsets if row["lag"] is not None]
    return {
        "group": described.group_id,
        "state": described.state,
        "members": len(described.members),
        "partitions": len(offsets),
        "lag": sum(lags) if lags else None,
        "max_lag": max(lags, default=None),
    }


def topic_rows(offsets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the lag of each topic as rows; *offsets* are `offset_rows` of one group.

    Partitions without a lag (no committed offset, or the partition is gone) are counted as *unknown*. The lag of the
    topic is that of the others.
    """
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for row in offsets:
        topics.setdefault(row["topic"], []).append(row)
    found = []
    for topic, rows in topics.items():
        lags = [row["lag"] for row in rows if row["lag"] is not None]
        found.append(
            {
                "group": rows[0]["group"],
                "topic": topic,
                "partitions": len(rows),
                "members": len({row["consumer_id"] for row in rows} - {None}),
                "lag": sum(lags) if lags else None,
                "max_lag": max(lags, default=None),
                "unknown": len(rows) - len(lags),
            }
        )
    return found
