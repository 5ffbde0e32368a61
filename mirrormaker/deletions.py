"""Deletes the mirrors of deleted source topics, `topic.deletion.policy=delete`.

Theory of operation
===================
A mirror topic states the cluster and the topic id of its source (`mirrormaker.lineage`). It is an *orphan* if this
flow's source has no topic with that id any more, under any name. Topic ids are never used twice, so a topic that was
created again does not hide the deletion of the earlier one. Its orphan is deleted, and the new topic is copied from its
start.

What a broker does not show is not proven to be deleted. Its metadata may be old, or may leave out a topic that kmirror
is not allowed to see. So an orphan is deleted only if it was one in every comparison of the last
`topic.deletion.delay.seconds`. Then the source's controller must answer that the name does not exist, or has another
topic id. The marks of the orphan are read again directly before: an operator may have promoted it. The delay starts
again with the process.

Pure: `orphans`, `OrphanTimes`. In: topics of both clusters   Out: DeleteTopics   Owner: the mirror
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from kclient.errors import KafkaError
from mirrormaker.catalog import Catalog
from mirrormaker.lineage import SOURCE_TOPIC_ID, text_of
from mirrormaker.settings import LinkSettings
from mirrormaker.topics import MARK, Topic


def orphans(
    source_ids: Collection[UUID], target: Mapping[str, Topic], source_id: str
) -> dict[str, str]:
    """Return the target topics that are mirrors of a deleted topic of the cluster *source_id*, with its topic id.

    A topic without a stated topic id is never one. *source_ids* are the ids of all topics of the source; without any
    there are no orphans, because a source without topic ids proves nothing.
    """
    present = {text_of(topic_id) for topic_id in source_ids}
    if not present:
        return {}
    stated = {
        name: topic.overrides.get(SOURCE_TOPIC_ID, "")
        for name, topic in target.items()
        if topic.overrides.get(MARK) == source_id
    }
    return {name: topic_id for name, topic_id in stated.items() if topic_id not in {"", *present}}


class OrphanTimes:
    """Since when each topic is an orphan of the same source topic, without a comparison that shows otherwise."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._since: dict[tuple[str, str], float] = {}

    def compared(
        self, found: Mapping[str, str], now: float
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Take the orphans of a comparison; return those that are new, and those with a delay that is over."""
        new = {name: each for name, each in found.items() if (name, each) not in self._since}
        self._since = {key: self._since.get(key, now) for key in found.items()}
        due = {
            name: each
            for name, each in found.items()
            if now - self._since[name, each] >= self._delay
        }
        return new, due


class TopicDeletions:
    """Deletes orphans at the target. *report* gets (subject, event) for the operator."""

    def __init__(
        self,
        source: Catalog,
        target: Catalog,
        settings: LinkSettings,
        *,
        report: Callable[[str, str], None],
    ) -> None:
        self._source = source
        self._target = target
        self._delay = settings.topic_deletion_delay
        self._times = OrphanTimes(self._delay)
        self._report = report
        self._reported: dict[str, str] = {}

    async def compared(
        self, found: Mapping[str, str], source_names: Mapping[str, str], source_id: str, now: float
    ) -> None:
        """Delete each orphan of *found* (target topic -> topic id at the source) after its delay.

        *source_names* has the name of its topic at the source. What cannot be deleted is reported once per reason,
        and tried again with the next comparison.
        """
        new, due = self._times.compared(found, now)
        for name, topic_id in new.items():
            self._report(
                f"topic {name}",
                f"its source topic ({topic_id}) was deleted; is deleted in {self._delay} s",
            )
        for name, topic_id in due.items():
            try:
                problem = await self._delete(name, topic_id, source_names[name], source_id)
            except KafkaError as error:
                problem = str(error)
            if problem and self._reported.get(name) != problem:
                self._report(f"topic {name}", f"is not deleted: {problem}")
            elif not problem:
                self._report(f"topic {name}", f"deleted, as its source topic ({topic_id}) was")
            self._reported[name] = problem

    async def _delete(self, name: str, topic_id: str, source_name: str, source_id: str) -> str:
        """Delete one orphan; return why not, or "". Raise KafkaError."""
        now_there = await self._source.topic_id_at_controller(source_name)
        if now_there is not None and text_of(now_there) in ("", topic_id):
            return f"the source's controller has {source_name} with topic id {text_of(now_there) or 'unknown'}"
        marks = await self._target.overrides_of(name)
        if (marks.get(MARK), marks.get(SOURCE_TOPIC_ID)) != (source_id, topic_id):
            return "it is no mirror of that topic any more"
        await self._target.delete(name)
        return ""
