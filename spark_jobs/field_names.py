"""Names the Avro fields in which the two records of a finding differ, for report.html: names, never values.

The records are fetched once more, as both clusters hold them now. If one has changed since the audit, that is the text.
A value is read with the schema that its source's record was written with, if that was given, or else with the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kclient.errors import SerializationError
from spark_jobs.finding_places import places

if TYPE_CHECKING:
    from spark_jobs.avro_diff import FindingDiff
    from spark_jobs.avro_fields import Parsed, Schemas
    from spark_jobs.hash_key import HashKey
    from spark_jobs.report.contents import Report

MOST = 20
"""Findings for which records are fetched, the first ones; `kaudit diff` takes any number."""


def field_names(
    report: Report, schemas: Sequence[Parsed], key: HashKey, timeout: float
) -> dict[int, str]:
    """Return in which fields the values of a finding differ, by its number; raise ClusterUnreadable."""
    from spark_jobs.commands.diff import finding_diff
    from spark_jobs.record_lookup import look_up
    from spark_jobs.report.page import FINDINGS_ON_PAGE

    found = {}
    for finding in [each for each in report.first_findings(FINDINGS_ON_PAGE) if _of_value(each)][
        :MOST
    ]:
        sides = places(finding, report.document)
        records = look_up(sides[0].place, timeout), look_up(sides[1].place, timeout)
        chosen = _schemas(schemas, getattr(records[0], "value", None))
        found[finding["seq"]] = _text(finding_diff(finding, sides, records, chosen, key))
    return found


def _of_value(finding: Mapping[str, Any]) -> bool:
    return finding["class"] == "corrupt" and "value" in str(finding["field"])


def _schemas(given: Sequence[Parsed], value: bytes | None) -> Schemas:
    from kclient.avro import frame_of
    from spark_jobs.avro_fields import Schemas

    try:
        written = None if value is None else frame_of(value).fingerprint
    except SerializationError:
        written = None
    reader = next((each for each in given if each.fingerprint == written), given[0])
    return Schemas(reader, [each for each in given if each is not reader], {})


def _text(diff: FindingDiff) -> str:
    from spark_jobs.avro_diff import Status, fields_that_differ
    from spark_jobs.avro_fields import Undecoded
    from spark_jobs.record_text import printable

    if diff.changed_since:
        return f"the record has changed since the audit in {', '.join(diff.changed_since)}"
    if diff.status is Status.ABSENT or diff.comparison is None:
        return f"fields are not known: {printable('; '.join(diff.reasons))}"
    sides = {"source": diff.comparison.source, "target": diff.comparison.target}
    problems = [
        f"{name}: {each.problem}" for name, each in sides.items() if isinstance(each, Undecoded)
    ]
    if problems:
        return f"fields are not known: {printable('; '.join(problems))}"
    names = fields_that_differ(diff)
    if not names:
        return "no Avro field differs, other bytes do"
    return f"Avro field{'s' if len(names) > 1 else ''} {printable(', '.join(names))}"
