"""The undo of a promotion that fails before the target is opened: the source accepts producers again.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from kclient.errors import KafkaError
from kclient.net.waiting import settled_by, sleep
from kclient.wire.errors import UnknownTopicOrPartition
from mirrormaker.catalog import Catalog
from mirrormaker.cluster_waits import POLL, TIMEOUT
from mirrormaker.config import FlowConfig
from mirrormaker.fence_removal import Configs, FenceRemoval
from mirrormaker.mirror import Mirror
from mirrormaker.promotion import Stage
from mirrormaker.promotion_fence import Marked, marked_as
from mirrormaker.promotion_topics import Roles, flow_back
from mirrormaker.removable_fences import abort_without_target, lost_target, still_mirrors


class PromotionUndo:
    """Removes the fences that one promotion of *config* has set."""

    def __init__(self, reactor: Any, config: FlowConfig, echo: Callable[[str], None]) -> None:
        self._reactor = reactor
        self._config = config
        self._echo = echo
        self._back = flow_back(config)
        self._removal = FenceRemoval(reactor, config.source, config.target, echo)

    async def undo(
        self,
        mirror: Mirror,
        roles: Roles,
        fenced: Mapping[str, Configs],
        opening: Collection[str],
    ) -> None:
        """Remove the fence that this command has set; name the topics that stay read-only.

        Another command may have found the fence, and opened the target behind it. Without the fence both clusters
        would then accept producers. *opening*: topics that may state that the target is about to be opened.
        """
        source, target = self._config.source, self._config.target
        removed: list[str] = []
        others: dict[str, str] = {}
        waiting, unread, problem = list(fenced), list[str](), None
        failed: dict[str, KafkaError] = {}
        if waiting:
            self._echo(
                f"{source} is read-only until the marks at {target} are read: {', '.join(waiting)}"
            )
        own = [name for name in fenced if name in opening]
        taken_back = await self._removal.take_back(roles.source_topics, own)
        give_up_at = self._reactor.seconds() + TIMEOUT
        while waiting:
            # A catalog of its own: one that has read the marks before keeps them if they cannot be read again.
            mirrors, more, unread, problem = await self._still_mirrors(
                Catalog(mirror.target), roles, waiting
            )
            done, kept, failed = await self._removal.remove(
                roles.source_topics,
                {name: fenced[name] for name in mirrors},
                taken_back.names,
                give_up_at,
            )
            removed += done
            others |= more | kept
            waiting = [*unread, *failed]
            may_pass = any(each and each.retriable for each in (problem, *failed.values()))
            if not may_pass or self._reactor.seconds() >= give_up_at:
                break
            await sleep(self._reactor, POLL)
        if removed:
            which = ", ".join(removed)
            detail = "; nothing was promoted" if len(removed) == len(fenced) else f": {which}"
            self._echo(f"{source} accepts producers again{detail}")
        for name, reason in others.items():
            self._echo(f"  {name}: {source} is still read-only: {reason}")
        if unread:
            if problem is not None:
                self._echo(f"  {target}: {problem}")
            self._echo(
                f"the marks at {target} are not read: {', '.join(unread)}. It may have been promoted by another command"
            )
        for name, why in failed.items():
            self._echo(f"  {name}: its mark cannot be removed: {why}")
        earlier = [name for name in roles.left if roles.stages[name] is Stage.FENCED]
        if failed or unread or earlier:
            self._echo(
                f"{source} is still read-only: {', '.join([*failed, *unread, *earlier])}. Repeat the command to "
                "continue; kmirror promote --abort removes the marks"
            )
        await self._name_ways(roles, unread, earlier, opening)

    async def _name_ways(
        self,
        roles: Roles,
        unread: Collection[str],
        earlier: Collection[str],
        opening: Collection[str],
    ) -> None:
        """Print how topics that stay read-only are opened without the target.

        *unread* are those of which the target's marks cannot be read, *earlier* those that an earlier command fenced.
        """
        target = self._config.target
        begun, later = list[str](), list[str]()
        # Another command may have begun to open the target since the topics were read.
        now = await settled_by([*unread, *earlier], roles.source_topics.overrides_of)
        for name, answer in now.items():
            topic = roles.source[name]
            if not isinstance(answer, KafkaError):
                topic = replace(topic, overrides=answer)
            elif name in opening:
                begun.append(name)
                continue
            kind = marked_as(topic)
            if kind is Marked.OPENING:
                begun.append(name)
            if kind is Marked.UNKNOWN:
                later.append(name)
                self._echo(f"  {name}: {kind.value.format(roles.target_id)}")
        if begun:
            way = lost_target(begun, roles.target_id, self._back)
            self._echo(
                f"without {target}, if no producer wrote there, {way} opens {', '.join(begun)}: a promotion had begun "
                "to open them there"
            )
        if others_unread := [name for name in unread if name not in (*begun, *later)]:
            way = abort_without_target(others_unread, roles.target_id, self._config.name)
            self._echo(
                f"without {target}, if no producer wrote there, {way} opens {', '.join(others_unread)}"
            )

    async def _still_mirrors(
        self, catalog: Catalog, roles: Roles, names: list[str]
    ) -> tuple[list[str], dict[str, str], list[str], KafkaError | None]:
        """Return `removable_fences.still_mirrors` of the topics *names*, by the target's marks as of now.

        The last result is why some marks are not read; a broker that has just started does not know the topics yet.
        """
        try:
            present = await catalog.names()
            there = await catalog.topics(names, configs_too=True, present=present)
        except KafkaError as problem:
            return [], {}, names, problem
        unreadable = catalog.unreadable
        mirrors, others, unread = still_mirrors(
            names,
            there,
            unreadable,
            source_id=roles.source_id,
            target_id=roles.target_id,
            back=self._back,
        )
        absent = {name for name in unread if name not in present}
        problems = [unreadable[name] for name in unread if name in unreadable]
        problems += [
            UnknownTopicOrPartition(f"the broker does not know {name} yet")
            for name in sorted(absent - await catalog.deleted(absent))
        ]
        problems.sort(key=lambda each: not each.retriable)
        return mirrors, others, unread, next(iter(problems), None)
