"""The schema files are what the generator writes, and what the codec can read."""

import subprocess
import sys
from pathlib import Path

import pytest

from kclient.wire.structs import Field, fields_of, nested_struct
from tests.kit.wire_messages import CONSUMER_PROTOCOL, MESSAGES, defaults_of, versions_of

ROOT = Path(__file__).resolve().parents[3]


def all_structs():
    found = {}

    def visit(cls):
        found[cls.__module__, cls.__name__] = cls
        for field in fields_of(cls):
            if field.type[0].isupper():
                visit(nested_struct(cls, field.type))

    for cls in [*MESSAGES.values(), *CONSUMER_PROTOCOL]:
        visit(cls)
    return list(found.values())


@pytest.mark.long
def test_the_schema_is_what_the_generator_writes():
    command = [sys.executable, "tools/generate_schema.py", "--check"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=50,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_field_has_a_wire_line_and_the_other_way_round():
    for cls in all_structs():
        names = [field.name for field in fields_of(cls)]
        assert sorted(names) == sorted(defaults_of(cls)), cls
        assert len(set(names)) == len(names), cls


def test_every_message_can_be_made_without_arguments():
    for cls in all_structs():
        assert cls() == cls()


def test_a_tag_is_used_once_per_version():
    for (api, _direction), cls in MESSAGES.items():
        for version in versions_of(api):
            tags = [f.tag for f in fields_of(cls) if f.tag is not None and f.versions.has(version)]
            assert len(set(tags)) == len(tags), (cls, version)


@pytest.mark.parametrize(
    ("line", "versions"),
    [("a int32 3+", {3, 4, 9}), ("a int32 2-4", {2, 3, 4}), ("a int32 7", {7})],
)
def test_a_wire_line_has_the_versions_of_its_field(line, versions):
    assert {version for version in range(10) if Field.parse(line).versions.has(version)} >= versions
    assert not Field.parse(line).versions.has(min(versions) - 1)
