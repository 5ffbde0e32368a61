"""Topics that were created again at the source, as JSON-ready values and as lines of a screen. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_jobs.recreated_topics import RecreatedTopic
from spark_jobs.snapshot import ClusterSnapshot

_SHOWN = 2
"""Topics with lines of their own on the screen, and earlier copies of each."""


def recreated_document(
    recreated: Sequence[RecreatedTopic], target: ClusterSnapshot
) -> list[dict[str, object]]:
    """Return *recreated*: the topics of *target* that are compared, and those that are not, with their offsets."""
    return [
        {
            "topic": each.topic,
            "topic_id": each.topic_id,
            "target_topic": each.copy,
            "earlier": [
                {
                    "topic": old.name,
                    "topic_id": old.topic_id,
                    "target_topic": old.topic,
                    "offsets": sum(
                        log.end - log.start
                        for tp, log in target.ranges.items()
                        if tp.topic == old.name
                    ),
                }
                for old in each.earlier
            ],
        }
        for each in recreated
    ]


def recreated_lines(
    recreated: Sequence[Mapping[str, Any]], number: Callable[[int], str] = "{:,}".format
) -> list[str]:
    """Return lines about the document *recreated*: what was compared with what, and what was not compared."""
    lines = []
    for each in recreated[:_SHOWN]:
        lines.append(
            f"{each['topic']} was created again at the source: it is compared with {each['target_topic']}"
        )
        lines += [
            f"  not compared: {old['target_topic']} at the target, {number(old['offsets'])} offsets of topic id "
            f"{old['topic_id']}, which the source has deleted; here {old['topic']}"
            for old in each["earlier"][:_SHOWN]
        ]
    if len(recreated) > _SHOWN:
        more = number(len(recreated) - _SHOWN)
        lines.append(f"{more} more topics were created again at the source: see `recreated`")
    return lines
