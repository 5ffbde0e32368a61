"""Emits MirrorMaker 2's heartbeats of one direction.

The direction A->B writes (A, B) to the topic `heartbeats` of B. It also writes (B, A) to that of A, unless the
direction B->A does. The topic of A is mirrored to B, and its name there shows MirrorMaker 2's client library where its
records come from. docs/design/mirror-groups.md has the reasons.

Owner: the mirror
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kclient.errors import KafkaError
from kclient.net.cluster import Cluster
from kclient.net.waiting import all_settled, sleep
from kclient.wire.records import Record
from mirrormaker.config import FlowConfig
from mirrormaker.internal_topic import InternalTopic
from mirrormaker.mm2_records import HEARTBEATS_TOPIC, heartbeat


class Heartbeats:
    """Emits the heartbeats of one direction while *is_elected*. *report* gets (subject, event) for the operator."""

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        config: FlowConfig,
        *,
        is_elected: Callable[[], bool],
        report: Callable[[str, str], None],
    ) -> None:
        self._is_elected = is_elected
        self._reactor = source.reactor
        self._settings = config.settings
        self._report = report
        self._reported: dict[str, str] = {}
        pairs = [(target, config.source, config.target)]
        if not config.opposite_emits_heartbeats:
            pairs.append((source, config.target, config.source))
        self._topics = [
            (
                InternalTopic(
                    cluster,
                    HEARTBEATS_TOPIC,
                    replication_factor=config.settings.heartbeats_replication_factor,
                    compact_existing=False,
                ),
                sender,
                receiver,
            )
            for cluster, sender, receiver in pairs
        ]

    async def run(self) -> None:
        """Emit every ``emit.heartbeats.interval.seconds``, if that is enabled."""
        while self._settings.emit_heartbeats:
            if self._is_elected():
                await all_settled(self._emit(*each) for each in self._topics)
            await sleep(self._reactor, self._settings.emit_heartbeats_interval)

    async def _emit(self, topic: InternalTopic, sender: str, receiver: str) -> None:
        now = time.time_ns() // 1_000_000
        try:
            await topic.create()
            await topic.append([Record(0, now, *heartbeat(sender, receiver, now))])
            text = ""
        except KafkaError as problem:
            text = f"cannot be written: {problem}"
        if text != self._reported.get(receiver, ""):
            self._report(f"heartbeats at {receiver}", text or "are written again")
        self._reported[receiver] = text
