"""What follows from target.offsets: the target keeps the source's offsets, or assigns offsets of its own.

| | `KeptOffsets` | `RenumberedOffsets` |
|---|---|---|
| a copy continues at | the target's log end | the committed offset of a group (`mirrormaker.position`) |
| its lineage is in | the mark of the target topic | the metadata of that offset |
| the target needs | conditional appends | transactions, with exactly.once=enabled |
| a topic that came back is known by | its mark | the group of the positions at the source |
| a committed offset of a group | is copied as it is | is translated (`mirrormaker.offset_pairs`) |

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from kclient.wire.errors import KafkaError
from mirrormaker.flow import Flow
from mirrormaker.lineage import Lineage, text_of
from mirrormaker.link_state import LogEnds
from mirrormaker.log_ends import read_log_ends
from mirrormaker.offset_pairs import Translate, Translated
from mirrormaker.position import Position, position_group
from mirrormaker.renumber_flow import RenumberFlow
from mirrormaker.renumbered_ends import lineage_of, position_of, read_renumbered_ends
from mirrormaker.target import check_targets
from mirrormaker.topics import Plan
from mirrormaker.transactional_target import check_transactions, read_positions


class KeptOffsets:
    """An offset of the source is the same record at the target."""

    flow = Flow

    def __init__(self, source: Cluster, target: Cluster) -> None:
        self._source = source
        self._target = target

    async def check_target(self) -> None:
        """Raise the KafkaError of the first broker of the target that cannot be used."""
        await check_targets(self._target, list(self._target.metadata.brokers))

    async def returned(self, source: Iterable[str]) -> list[str]:
        """Return nothing: such topics of *source* have marks, and the plan leaves them out."""
        return []

    async def read_ends(
        self, pairs: Mapping[TopicPartition, TopicPartition]
    ) -> dict[TopicPartition, LogEnds | KafkaError]:
        """Return the log ends of source and target partitions."""
        return await read_log_ends(self._source, self._target, pairs)

    async def translator(self, copies: Mapping[TopicPartition, TopicPartition]) -> Translate:
        """Return the function that leaves every offset as it is; *copies* are source -> target partitions."""
        return lambda _copy, offset: Translated(offset)

    def lineage_of(self, plan: Plan, tp: TopicPartition) -> Lineage:
        """Return the lineage of the copy of *tp*, as of *plan*."""
        return plan.lineages.get(plan.mirrored[tp.topic], Lineage())


class RenumberedOffsets:
    """An offset of the source is another record at the target.

    *source_id* and *target_id* return the ids of the clusters, which are known when they are connected.
    """

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        *,
        is_transactional: bool,
        source_id: Callable[[], str],
        target_id: Callable[[], str],
    ) -> None:
        self._source = source
        self._target = target
        self._is_transactional = is_transactional
        self._source_id = source_id
        self._target_id = target_id
        self._lineages: dict[TopicPartition, Lineage] = {}
        """The lineage of each copy at the last `read_ends`."""
        self._flow: RenumberFlow | None = None

    def flow(self, *args: Any, **options: Any) -> RenumberFlow:
        """Return a new flow."""
        self._flow = RenumberFlow(*args, source_id=self._source_id, **options)
        return self._flow

    async def check_target(self) -> None:
        """Raise the KafkaError of the first broker of the target without transactions, if they are used."""
        if self._is_transactional:
            brokers = list(self._target.metadata.brokers)
            await check_targets(self._target, brokers, check_transactions)

    async def returned(self, source: Iterable[str]) -> list[str]:
        """Return which topics of *source* a mirror with target.offsets=renumber copied from the target.

        Such topics have no marks. The group of the positions at the source names them.
        """
        group = position_group(self._target_id())
        positions = await read_positions(self._source, group, is_transactional=False)
        copied = {tp.topic for tp in positions}
        return [name for name in source if name in copied]

    async def read_ends(
        self, pairs: Mapping[TopicPartition, TopicPartition]
    ) -> dict[TopicPartition, LogEnds | KafkaError]:
        """Return the log ends of source and target partitions; that of the target is the position."""
        group = position_group(self._source_id())
        # Pending positions are left out: status reads while a mirror runs.
        positions = await read_positions(self._target, group, is_transactional=False)
        for tp, copy in pairs.items():
            topic_id = text_of(self._source.metadata.topic_id(tp.topic))
            self._lineages[tp] = lineage_of(position_of(positions, self._target, copy), topic_id)
        # Without the check of what is behind the positions: a mirror that runs appends there.
        return await read_renumbered_ends(
            self._source, self._target, pairs, positions, group, is_transactional=False
        )

    async def translator(self, copies: Mapping[TopicPartition, TopicPartition]) -> Translate:
        """Return the translation of the positions of *copies*, source -> target partitions. Raise KafkaError.

        Those of a flow that copies are the latest. A coordinator returns the position before them until it has applied
        the end of the transaction.
        """
        stored: Mapping[TopicPartition, Position] = {}
        if self._flow is not None:
            stored = dict(self._flow.machine.positions)
        if not stored:
            group = position_group(self._source_id())
            stored = await read_positions(self._target, group, is_transactional=False)
        positions: dict[TopicPartition, Position] = {}
        for tp, copy in copies.items():
            position = position_of(stored, self._target, copy)
            topic_id = text_of(self._source.metadata.topic_id(tp.topic))
            if position is not None and position.topic_id == topic_id:
                positions[copy] = position

        def translate(copy: TopicPartition, offset: int) -> Translated | None:
            position = positions.get(copy)
            return None if position is None else position.translate(offset)

        return translate

    def lineage_of(self, plan: Plan, tp: TopicPartition) -> Lineage:
        """Return the lineage of the copy of *tp*, as of the last `read_ends`."""
        return self._lineages.get(tp, Lineage())


TargetOffsets = KeptOffsets | RenumberedOffsets
