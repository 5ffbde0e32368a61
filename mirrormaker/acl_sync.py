"""Copies or reports the source's ACLs about mirrored topics, as ``sync.topic.acls.enabled`` has it.

Every ``sync.topic.acls.interval.seconds``, and when other topics are mirrored than before, the elected worker compares
the ACLs of both clusters. It adds to the target what `mirrormaker.acls` derives from the source's, before records of a
new topic are copied. What failed is tried again after `RETRY` seconds. It removes nothing: an ACL that only the target
has is reported. Each report is made once.

Owner: the mirror
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from kclient.admin.acls import TopicAcl
from kclient.errors import KafkaError
from kclient.wire.errors import SecurityDisabled, UnsupportedVersion
from mirrormaker.acls import copied, listed, not_copied, not_visible, only_at_target
from mirrormaker.settings import LinkSettings

Describe = Callable[[], Awaitable[Sequence[TopicAcl]]]
Create = Callable[[Sequence[TopicAcl]], Awaitable[Mapping[TopicAcl, KafkaError | None]]]
RETRY = 60.0
"""Seconds: each denied request is a line in the log of the broker's authorizer."""

NO_AUTHORIZER = (SecurityDisabled, UnsupportedVersion)


class AclSync:
    """The ACLs of one direction. *report* gets (subject, event) for the operator."""

    def __init__(
        self,
        settings: LinkSettings,
        *,
        at_source: Describe,
        at_target: Describe,
        create: Create,
        report: Callable[[str, str], None],
    ) -> None:
        self._copies = settings.sync_acls == "true"
        self._is_quiet = settings.sync_acls == "false"
        self._interval = settings.sync_acls_interval
        self._at_source = at_source
        self._at_target = at_target
        self._create = create
        self._report = report
        self._reported: Mapping[str, str] = {}
        self._due = 0.0
        self._mirrored: Mapping[str, str] = {}
        self.problem = ""
        """Why the last comparison left ACLs uncopied that are to be copied; "" if it did not."""

    async def run(
        self,
        mirrored: Mapping[str, str],
        *,
        wanted: Callable[[str], bool],
        present: Collection[str],
        now: float,
    ) -> None:
        """Compare, if that is due. *mirrored*: target topics by source topic; *wanted* and *present*: of the source."""
        if self._is_quiet or (now < self._due and mirrored == self._mirrored):
            return
        self._due, self._mirrored = now + self._interval, dict(mirrored)
        reports: dict[str, str] = {}
        try:
            found = await self._at_source()
        except NO_AUTHORIZER:
            self.problem = ""
            return
        except KafkaError as problem:
            self._due = now + RETRY
            text = f"of the source are unknown, and none is copied: {problem}"
            self.problem = text if self._copies else ""
            self._report_new({"ACLs": text})
            return
        reports["topics"] = not_visible(found, wanted, present)
        if self._copies:
            reports |= await self._copy(found, mirrored, now)
        else:
            reports["ACLs"] = not_copied(found, mirrored)
        self._report_new(reports)

    def left_to_another(self) -> None:
        """Handle that another worker compares the ACLs from now on."""
        self.problem = ""

    async def _copy(
        self, found: Sequence[TopicAcl], mirrored: Mapping[str, str], now: float
    ) -> dict[str, str]:
        """Add what the target lacks; return what to report."""
        expected = copied(found, mirrored)
        try:
            there = set(await self._at_target())
            lacking = sorted(expected - there)
            outcomes = await self._create(lacking) if lacking else {}
        except NO_AUTHORIZER:
            text = not_copied(found, mirrored)
            self.problem = text and f"the target has no authorizer; {text}"
            return {"ACLs": self.problem}
        except KafkaError as problem:
            self._due = now + RETRY
            self.problem = f"cannot be copied to the target: {problem}"
            return {"ACLs": self.problem}
        added = [acl for acl, problem in outcomes.items() if problem is None]
        if added:
            self._report("ACLs", f"{len(added)} were added at the target: {listed(added)}")
        refused = [f"{listed([acl])}: {problem}" for acl, problem in outcomes.items() if problem]
        if refused:
            self._due = now + RETRY
        self.problem = (
            f"{len(refused)} are not added at the target: {refused[0]}" if refused else ""
        )
        return {
            "ACLs that the target refuses": self.problem,
            "ACLs": only_at_target(there, expected, mirrored.values()),
        }

    def _report_new(self, reports: Mapping[str, str]) -> None:
        for about, text in reports.items():
            if text and self._reported.get(about) != text:
                self._report(about, text)
        self._reported = reports
