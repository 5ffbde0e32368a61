"""What log compaction explains: records that one log has, and that the other one may have removed.

Compaction removes a record only after the log has received a later one with its key. It removes a tombstone only after
the earlier records with its key. It removes no record while an earlier one of its key stays: it cleans a log from its
start on. That is used of renumbered targets only. So a finding is decided by where both logs have its key (`KeySpans`).
The findings of a partition are decided in the driver, up to `spark_jobs.folding.LOOKED_UP`. Of those beyond, Spark
tasks decide, each of the findings and the spans of some keys (`decided`).

In: findings, spans.  Out: which are explained.  Owner: the driver, or a Spark task; pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from kclient.types import TopicPartition
from spark_jobs.engine import KeysFound, KeySpan, Place
from spark_jobs.findings import CONTROL, KEYLESS, TOMBSTONE, UNDECIDED, Finding, FindingClass

ONLY_TARGET = (FindingClass.EXTRA, FindingClass.DUPLICATE)

_Spans = Mapping[Place, KeySpan]


@dataclass(frozen=True, slots=True)
class KeySpans:
    """Where the two logs have the keys of a lookup, below the cut and behind it.

    Compaction removes a record only after the log has received a later one with its key. It removes a tombstone only
    after the earlier records with its key. The later record may be newer than the cut: `newer`.
    """

    source: _Spans = field(default_factory=dict)
    target: _Spans = field(default_factory=dict)
    beyond_source: _Spans = field(default_factory=dict)
    beyond_target: _Spans = field(default_factory=dict)
    unread: tuple[AbstractSet[TopicPartition], AbstractSet[TopicPartition]] = (
        frozenset(),
        frozenset(),
    )
    """Partitions of which a part of *source*, and of *target*, was not read: no key is known to be absent there."""

    @classmethod
    def of(
        cls,
        source: KeysFound,
        target: KeysFound,
        beyond_source: KeysFound,
        beyond_target: KeysFound,
    ) -> KeySpans:
        """Return what was found below the cut, and behind it."""
        return cls(
            source.spans,
            target.spans,
            beyond_source.spans,
            beyond_target.spans,
            (source.unread, target.unread),
        )

    def newer(self, source: _Spans, target: _Spans) -> KeySpans:
        """Return the spans with those of records that the logs received after everything that was read of them."""
        return replace(
            self,
            beyond_source={**self.beyond_source, **source},
            beyond_target={**self.beyond_target, **target},
        )

    def explain(self, finding: Finding, *, renumbered: bool, passed_up_to: int = 0) -> bool:
        """Return whether compaction may have removed the record of *finding*, below its end, from the other log.

        *passed_up_to*: `Alignment.passed_up_to`.
        """
        if finding.flags & CONTROL:
            return True
        if finding.flags & KEYLESS or finding.key_hash is None:
            return False
        place = (finding.topic, finding.partition, finding.key_hash)
        by_source = finding.finding_class in ONLY_TARGET
        was_read = finding.topic_partition not in self.unread[0 if by_source else 1]
        is_tombstone = bool(finding.flags & TOMBSTONE) and was_read
        cleaned = (self.source if by_source else self.target).get(place)
        others = (self.target if by_source else self.source).get(place)
        beyond = self.beyond_source.get(place), self.beyond_target.get(place)
        received, others_newer = beyond if by_source else beyond[::-1]
        if renumbered:
            # Only offsets of one log can be compared: in its own log the record's, in the other that of the common
            # record before it.
            superseded = any(
                each and each.last > finding.position for each in (others, others_newer)
            )
            follows = -1 if finding.follows is None else finding.follows
            if finding.tail_position is not None:
                # What the source has behind it may lag, too. What the target had behind the pair at the cut may be
                # older: a copy of a record that the source has cleaned. Only what the target has received since shows
                # that it replaced the record. The last record of a key is gone only if it was a tombstone. So is the
                # last one that the mirror has passed, whatever follows it in what lags.
                followed = received is not None and received.last > follows
                absent = was_read and cleaned is None and received is None
                known = finding.topic_partition not in self.unread[0]
                passed = is_tombstone and finding.is_before(passed_up_to)
                deletes = passed or (others is not None and others.deletes)
                return (superseded and followed) or (absent and known and deletes)
            # A DUPLICATE has two equal records, whichever of them is cleaned since.
            repeats = finding.finding_class is FindingClass.DUPLICATE
            if not repeats and self._has_older(cleaned, others, follows, finding.topic_partition):
                return False
            followed = any(each and each.last > follows for each in (cleaned, received))
            return superseded or followed or (is_tombstone and cleaned is None)
        if any(each and each.last > finding.position for each in (cleaned, others, received)):
            return True
        earlier = cleaned is not None and cleaned.first < finding.position
        return is_tombstone and not earlier

    def _has_older(
        self,
        cleaned: KeySpan | None,
        others: KeySpan | None,
        follows: int,
        tp: TopicPartition,
    ) -> bool:
        """Return whether the log that may have removed a record still has an older one of its key, up to *follows*.

        If a log has two equal records of the key, nothing shows that the one up to *follows* is older.
        """
        if cleaned is None or others is None or cleaned.first > follows:
            return False
        return not (cleaned.repeats or others.repeats or any(tp in each for each in self.unread))


def decided(
    undecided: Iterable[Finding], spans: KeySpans, *, renumbered: bool, passed_up_to: int = 0
) -> tuple[int, list[Finding]]:
    """Return how many offsets those own that compaction explains, and the other findings."""
    owned, left = 0, []
    for each in undecided:
        if spans.explain(each, renumbered=renumbered, passed_up_to=passed_up_to):
            owned += each.owns
        else:
            left.append(replace(each, flags=each.flags & ~UNDECIDED))
    return owned, left
