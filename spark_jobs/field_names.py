"""Names the Avro fields in which the two records of a finding differ, for report.html: names, never values.

The records are fetched once more, as both clusters hold them now. If one has changed since the audit, that is the text.
A value is read with the schema that its source's record was written with, if that was given, or else with the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kclient.errors import SerializationError
from spark_jobs.finding_places import places

if TYPE_CHECKING:
    from spark_jobs.avro_diff import FindingDiff
    from spark_jobs.avro_fields import Parsed
    from spark_jobs.hash_key import HashKey
    from spark_jobs.report.contents import AvroFields, Report

MOST = 20
"""Findings for which records are fetched, the first ones; `kaudit diff` takes any number."""


def field_names(
    report: Report, schemas: Mapping[str, Parsed], key: HashKey, timeout: float
) -> dict[int, AvroFields]:
    """Return in which fields the values of a finding differ, by its number; raise ClusterUnreadable.

    *schemas* has the file of each.
    """
    from spark_jobs.avro_diff import fields_that_differ
    from spark_jobs.avro_fields import Schemas
    from spark_jobs.commands.diff import finding_diff
    from spark_jobs.record_lookup import look_up
    from spark_jobs.report.contents import AvroFields
    from spark_jobs.report.page import FINDINGS_ON_PAGE

    found = {}
    for finding in [each for each in report.first_findings(FINDINGS_ON_PAGE) if _of_value(each)][
        :MOST
    ]:
        sides = places(finding, report.document)
        records = look_up(sides[0].place, timeout), look_up(sides[1].place, timeout)
        file = _file(schemas, getattr(records[0], "value", None))
        others = [each for name, each in schemas.items() if name != file]
        diff = finding_diff(finding, sides, records, Schemas(schemas[file], others, {}), key)
        found[finding["seq"]] = AvroFields(_text(diff), file if fields_that_differ(diff) else "")
    return found


def _of_value(finding: Mapping[str, Any]) -> bool:
    return finding["class"] == "corrupt" and "value" in str(finding["field"])


def _file(given: Mapping[str, Parsed], value: bytes | None) -> str:
    """Return the file of the schema that *value* was written with, or else the first one."""
    from kclient.avro import frame_of

    try:
        written = None if value is None else frame_of(value).fingerprint
    except SerializationError:
        written = None
    first = next(iter(given))
    return next((name for name, each in given.items() if each.fingerprint == written), first)


def _text(diff: FindingDiff) -> str:
    from spark_jobs.avro_diff import Status, fields_read_differently, fields_that_differ
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
    of = "" if diff.finding["records"] == 1 else " (of the first record)"
    if names := fields_that_differ(diff):
        return f"Avro field{'s' if len(names) > 1 else ''} {printable(', '.join(names))}{of}"
    if names := fields_read_differently(diff):
        return f"stored alike, read differently: {printable(', '.join(names))}{of}"
    return f"no Avro field differs, other bytes do{of}"
