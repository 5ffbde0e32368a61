"""The line of a screen about two addresses of one cluster: each log is compared with itself. Pure."""

from __future__ import annotations


def one_cluster_lines(
    names: tuple[str, str], cluster_ids: tuple[str, str], target_prefix: str
) -> list[str]:
    """Return a line if source and target are one cluster, else none.

    *names* and *cluster_ids* are of source and target. With a *target_prefix* two topics of one cluster are compared. A
    cluster without an id is not known to be another one's equal.
    """
    source_id, target_id = cluster_ids
    if not source_id or source_id != target_id or target_prefix:
        return []
    return [
        f"ATTENTION: {names[0]} and {names[1]} are one cluster ({source_id}): its logs are compared with themselves"
    ]
