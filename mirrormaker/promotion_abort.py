"""``kmirror promote --abort``: topics with the fence of a promotion that is not to continue accept producers again.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import CancelledError

from kclient.config import CommonConfig
from kclient.errors import KafkaError
from kclient.net.cluster import Cluster
from kclient.wire.errors import UnknownTopicOrPartition
from mirrormaker.catalog import Catalog
from mirrormaker.cluster_waits import (
    TIMEOUT,
    names_that_exist,
    names_with,
    until_answered,
)
from mirrormaker.command_exit import DONE, REFUSED, Refused
from mirrormaker.config import FlowConfig
from mirrormaker.fence_removal import FenceRemoval
from mirrormaker.interruption import uninterrupted
from mirrormaker.mirror import identity_of
from mirrormaker.promotion_fence import (
    FenceState,
    Marked,
    fence_state,
    marked_as,
    marks_before_the_fence,
)
from mirrormaker.promotion_topics import PromotedTopics, flow_back
from mirrormaker.removable_fences import (
    fenced,
    marked_by,
    marks_of,
    of_other_clusters,
    without_target,
)
from mirrormaker.topics import MARK, Topic

_AtTheTarget = tuple[str, Mapping[str, Topic], Mapping[str, KafkaError]] | None
"""The target's cluster id, its topics by name, and why others cannot be read; None if it does not answer."""


class PromotionAbort:
    """One ``--abort`` for the *topics* of *config*, regular expressions; `run` returns the exit code.

    *target_id* states the target's cluster id, if the target does not answer.
    """

    def __init__(
        self,
        reactor: Any,
        config: FlowConfig,
        topics: str,
        target_id: str | None,
        echo: Callable[[str], None],
        *,
        cluster: Callable[[Any, CommonConfig], Cluster] = Cluster,
    ) -> None:
        self._reactor = reactor
        self._cluster = cluster
        self._config = config
        self._topics = PromotedTopics(config, topics)
        self._target_id = target_id
        self._taken_back: set[str] = set()
        self._echo = echo
        self._back = flow_back(config)
        self._removal = FenceRemoval(reactor, config.source, config.target, echo)

    async def run(self) -> int:
        """Remove the fence from the source's topics that are fenced and not promoted; return the exit code.

        Only the source has to answer, if the options name the target's cluster id.
        """
        source = self._cluster(self._reactor, self._config.source_client)
        try:
            await source.start()
            return await self._abort(source, Catalog(source))
        except CancelledError:
            self._echo(
                f"{self._config.source}: topics may still be read-only. Repeat the command to continue"
            )
            raise
        except KafkaError:
            if self._taken_back:
                which = ", ".join(sorted(self._taken_back))
                self._echo(
                    f"{self._config.source}: topics may still be read-only: {which}. Repeat the command to continue"
                )
            raise
        except Refused as refusal:
            self._echo(f"refused: {refusal}")
            return REFUSED
        finally:
            await uninterrupted(source.close())

    async def _abort(self, source: Cluster, catalog: Catalog) -> int:
        present, unknown = await names_that_exist(
            self._reactor, source, catalog, self._has_one_name
        )
        names = [name for name in present if self._has_one_name(name)]
        late = sorted(unknown)
        if not names and not late:
            raise Refused("no topic is selected")
        marked = await until_answered(self._reactor, lambda: self._marked(catalog, names))
        found, taken_back, earlier = _Fences([]), set[str](), marked
        if marked:
            source_id = identity_of(source, self._config.source)
            there = await self._at_the_target(marked)
            begun = await self._removal.take_back(
                catalog, self._fences(marked, there, source_id).names
            )
            taken_back = self._taken_back = begun.names
            if taken_back:
                there = await self._at_the_target(marked)
            # The target was waited for: another command may have begun to open it meanwhile.
            marked = await until_answered(self._reactor, lambda: self._marked(catalog, names))
            found = self._fences(marked, there, source_id)
        stay = {
            name: f"its configs cannot be read: {problem}"
            for name, problem in catalog.unreadable.items()
        } | dict(found.doubtful)
        stay |= dict.fromkeys(
            late,
            f"the broker at {self._config.source} does not know the topic yet. Repeat the command",
        )
        stay |= {name: f"it is a mirror of cluster {mark}" for name, mark in found.others.items()}
        writable, kept, failed = await self._removal.remove(
            catalog,
            {name: marks_before_the_fence(marked[name]) for name in found.names},
            taken_back,
            self._reactor.seconds() + TIMEOUT,
            [
                name
                for name, topic in earlier.items()
                if fence_state(topic.overrides) is FenceState.OPENED
            ],
        )
        stay |= kept | {name: str(problem) for name, problem in failed.items()}
        for name, mark in found.ordinary.items():
            self._echo(f"  {name}: left alone: a mirror of cluster {mark}")
        for name, reason in stay.items():
            self._echo(f"  {name}: its mark was not removed: {reason}")
        self._echo(
            f"{self._config.source} accepts producers again: {', '.join(writable)}"
            if writable
            else f"{self._config.source}: no fence was removed"
        )
        if found.others:
            self._echo(
                f"the cluster at {self._config.target}'s address is {found.target_id}. If another one was there, and "
                "no producer wrote to it, --target-id with its id opens the topics that are marked as its mirrors: "
                f"{', '.join(found.others)}"
            )
        return REFUSED if stay else DONE

    def _has_one_name(self, name: str) -> bool:
        """Return whether the source topic *name* is selected, and has that name at the target."""
        return self._topics.selects(name) and self._topics.target_name(name) == name

    async def _marked(self, catalog: Catalog, names: Collection[str]) -> dict[str, Topic]:
        """Return those of the source's topics *names* that have a mark now. Raise KafkaError."""
        for name in names:
            catalog.forget(name)
        present = await catalog.names()
        absent = {*names} - present.keys()
        if absent and (unknown := absent - await catalog.deleted(absent)):
            raise UnknownTopicOrPartition(f"the broker does not know {', '.join(sorted(unknown))}")
        topics = await catalog.topics(names, configs_too=True, present=present)
        return {name: topic for name, topic in topics.items() if topic.overrides.get(MARK)}

    def _fences(self, marked: Mapping[str, Topic], found: _AtTheTarget, source_id: str) -> _Fences:
        """Return which of the topics *marked* have a fence to remove: by the target's marks, if it answered.

        The cluster id of the options decides only what the marks do not show. A cluster with another id at the target's
        address shows nothing. Raise `Refused`.
        """
        stated = self._target_id
        if found is None or stated not in (None, found[0]):
            return _Fences(*marked_by(marked, stated or "", self._back))
        target_id, there, unreadable = found
        names, doubtful = fenced(
            marked, there, unreadable, source_id=source_id, target_id=target_id, back=self._back
        )
        others, ordinary, undecided = of_other_clusters(
            marked, there, unreadable, source_id=source_id, target_id=target_id
        )
        if stated is not None:
            names += [
                name
                for name in doubtful
                if name not in there and marked_as(marked[name]) is Marked.FENCE
            ]
            doubtful = {name: why for name, why in doubtful.items() if name not in names}
        doubtful |= {
            name: f"it is a mirror of cluster {mark}, by a promotion or by its fence: look whether that cluster "
            "accepts producers"
            for name, mark in undecided.items()
        }
        return _Fences(names, doubtful, others, ordinary, target_id)

    async def _at_the_target(self, marked: Mapping[str, Topic]) -> _AtTheTarget:
        """Return what the target shows of the topics *marked*. Mirrors of other clusters are not waited for.

        Raise `Refused` if the target does not answer, and the options do not state its cluster id.
        """
        target = self._cluster(self._reactor, self._config.target_client)
        try:
            await target.start()
            catalog = Catalog(target)
            target_id = identity_of(target, self._config.target)
            of_target = {
                name for name, each in marked.items() if each.overrides.get(MARK) == target_id
            }
            present, unknown = await names_with(self._reactor, catalog, of_target)
            absent = marked.keys() - of_target - present.keys()
            unknown |= absent - await catalog.deleted(absent)
            topics = await catalog.topics(marked, configs_too=True, present=present)
        except KafkaError as problem:
            if self._target_id is not None:
                return None
            raise Refused(
                f"{self._config.target} does not answer ({problem}), and may accept producers: "
                f"{marks_of(marked)}. {without_target(marked, self._back)}"
            ) from problem
        else:
            unreadable = catalog.unreadable | {
                name: UnknownTopicOrPartition(f"the broker does not know {name} yet")
                for name in unknown
            }
            return target_id, topics, unreadable
        finally:
            await uninterrupted(target.close())


@dataclass(frozen=True, slots=True)
class _Fences:
    """The marked topics of the source, for `--abort`."""

    names: list[str]
    """Those that a promotion has fenced, and not opened at the target."""
    doubtful: Mapping[str, str] = field(default_factory=dict)
    """Those of which that is unknown, with the reason."""
    others: Mapping[str, str] = field(default_factory=dict)
    """`removable_fences.of_other_clusters` that may have a fence."""
    ordinary: Mapping[str, str] = field(default_factory=dict)
    """`removable_fences.of_other_clusters` without a fence."""
    target_id: str = ""
    """The cluster at the target's address, if it was asked."""
