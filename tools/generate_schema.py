"""Write kclient/wire/schema/*.py from the per-version classes of the kio library.

    python -m tools.generate_schema            write the files
    python -m tools.generate_schema --check    exit 1 if a file is not what would be written

kio has one class per struct and version. Here they are merged: one dataclass per struct, with the
fields of every version in `SUPPORTED`, and a WIRE line per field with the versions that have it
(`kclient.wire.codec`). What is a timedelta, datetime or enum in kio is a plain int here, so that
every value a peer may send (-1, an error code newer than us) survives.
"""

import argparse
import subprocess
import sys
import tempfile
import types
import typing
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path

from kio.index import load_entity_schema
from kio.static.constants import EntityType

from kclient.wire.versions import SUPPORTED, ApiKey, VersionRange, is_flexible

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "kclient" / "wire" / "schema"
BY_HAND = {
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
}
EMBEDDED = {
    "consumer_protocol_subscription": VersionRange(0, 3),
    "consumer_protocol_assignment": VersionRange(0, 3),
}
PLAIN = {
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "int",
    "uint16": "int",
    "error_code": "int",
    "timedelta_i32": "int",
    "timedelta_i64": "int",
    "datetime_i64": "int",
    "bool": "bool",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "records": "bytes",
    "uuid": "UUID",
}
ON_WIRE = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
    "records": "bytes",
}
ZERO = {"int": "0", "bool": "False", "float": "0.0", "str": '""', "bytes": 'b""', "UUID": "None"}


Kind = typing.Literal[EntityType.request, EntityType.response, EntityType.data]


@dataclass
class MergedField:
    """One field over all versions that have it."""

    name: str
    wire_type: str
    plain: str
    is_array: bool
    is_struct: bool
    default: object
    tag: int | None
    versions: list[int] = field(default_factory=list)
    null_in: list[int] = field(default_factory=list)


@dataclass
class MergedStruct:
    """One struct over all versions."""

    name: str
    versions: list[int] = field(default_factory=list)
    fields: dict[str, MergedField] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)


EXTENSIONS = {
    "ApiVersionsRequest": MergedField(
        "broker_proof", "bytes", "bytes", False, False, MISSING, 10_000, [3, 4]
    ),
    "AddPartitionsToTxnResult": MergedField(
        "transaction_number", "int64", "int", False, False, -1, 10_000, [4, 5]
    ),
    "WritableTxnMarker": MergedField(
        "transaction_number", "int64", "int", False, False, -1, 10_000, [1]
    ),
}
"""Tagged fields of ours in Kafka's messages (KIP-482), by struct: `kbroker.security.core.broker_proof`,
docs/design/transactions.md (three things could break this)."""


def element_type(annotation: object) -> tuple[object, bool, bool]:
    """Return (type without null and tuple, is array, is nullable) of a kio annotation."""
    nullable = array = False
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        nullable = True
        annotation = next(a for a in typing.get_args(annotation) if a is not types.NoneType)
    if typing.get_origin(annotation) is tuple:
        array = True
        annotation = typing.get_args(annotation)[0]
    return annotation, array, nullable


def plain_default(value: object) -> object:
    """Turn a kio default into what stands on the wire."""
    if isinstance(value, Enum):
        return int(value.value)
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return value


def merge(cls: type, version: int, into: dict[str, MergedStruct]) -> None:
    """Add *cls*, the class of one version, and its nested structs to what is merged already."""
    order = []
    nested: list[type] = []
    merged = into.setdefault(cls.__name__, MergedStruct(cls.__name__))
    if version in merged.versions:
        return
    merged.versions.append(version)
    for kio_field in fields(cls):
        inner, is_array, nullable = element_type(kio_field.type)
        is_struct = is_dataclass(inner)
        default: object = MISSING
        if kio_field.default is not MISSING:
            default = plain_default(kio_field.default)
        if is_struct:
            assert isinstance(inner, type)
            nested.append(inner)
            wire_type = plain = inner.__name__
            name = kio_field.name
        else:
            kafka_type = kio_field.metadata["kafka_type"]
            wire_type, plain = ON_WIRE.get(kafka_type, kafka_type), PLAIN[kafka_type]
            timed = kafka_type.startswith(("timedelta", "datetime"))
            name = kio_field.name + ("_ms" if timed else "")
            nullable = nullable and kafka_type != "uuid" and not timed
            if kafka_type == "datetime_i64" and default is None:
                default = -1
        tag = kio_field.metadata.get("tag")
        found = MergedField(name, wire_type, plain, is_array, is_struct, default, tag)
        known = merged.fields.setdefault(name, found)
        assert (known.wire_type, known.is_array) == (wire_type, is_array), (cls, name)
        if known.default is MISSING:
            known.default = default
        known.tag = tag if known.tag is None else known.tag
        known.versions.append(version)
        if nullable:
            known.null_in.append(version)
        order.append(name)
    merged.order = merge_orders(merged.order, order)
    for struct in nested:
        merge(struct, version, into)


def merge_orders(old: list[str], new: list[str]) -> list[str]:
    """Return one order that both follow; fields only *old* has stay after their predecessor."""
    result = list(new)
    for index, name in enumerate(old):
        if name not in result:
            before = [result.index(other) for other in old[:index] if other in result]
            result.insert(max(before, default=-1) + 1, name)
    for side in (old, new):
        assert [name for name in result if name in side] == side, (old, new)
    return result


def versions_text(versions: list[int], last: int) -> str:
    """Write a set of versions as "3+", "2-4" or "7"."""
    assert versions == list(range(versions[0], versions[-1] + 1)), versions
    if versions[-1] == last:
        return f"{versions[0]}+"
    return str(versions[0]) if len(versions) == 1 else f"{versions[0]}-{versions[-1]}"


def default_source(merged: MergedField) -> tuple[str, str]:
    """Return (annotation, default) of the dataclass's field."""
    plain = merged.plain
    if merged.is_array:
        annotation = f"list[{plain}]"
        if merged.null_in:
            annotation += " | None"
            if merged.default is None:
                return annotation, "None"
        return annotation, "field(default_factory=list)"
    if merged.is_struct:
        if merged.null_in:
            return f"{plain} | None", "None"
        return plain, f"field(default_factory={plain})"
    if plain == "UUID":
        return "UUID | None", "None"
    if merged.null_in:
        plain += " | None"
    if merged.default is MISSING:
        return plain, ZERO[merged.plain]
    return plain, repr(merged.default) if merged.plain != "str" else str_source(merged.default)


def str_source(value: object) -> str:
    """Write a str or None as our formatter would."""
    return "None" if value is None else '"' + str(value) + '"'


def struct_source(struct: MergedStruct, versions: VersionRange, owner: str) -> list[str]:
    """Return the lines of one dataclass."""
    what = f"The body of {struct.name}" if struct.name == owner else f"Part of {owner}"
    shown = versions_text(struct.versions, versions.max)
    lines = ["", "", "@dataclass(slots=True)", f"class {struct.name}:"]
    lines += [f'    """{what}, versions {shown}."""', ""]
    wire = []
    for name in struct.order:
        merged = struct.fields[name]
        line = f"{name} {'[]' if merged.is_array else ''}{merged.wire_type} "
        line += versions_text(merged.versions, versions.max)
        if merged.null_in:
            line += f" null={versions_text(merged.null_in, versions.max)}"
        if merged.tag is not None:
            line += f" tag={merged.tag}"
        wire.append(f'        "{line}",')
    lines += ["    WIRE: ClassVar[tuple[str, ...]] = (", *wire, "    )"]
    for name in struct.order:
        annotation, default = default_source(struct.fields[name])
        lines.append(f"    {name}: {annotation} = {default}")
    return lines


def ordered(structs: dict[str, MergedStruct], root: str) -> list[MergedStruct]:
    """Return the structs with every nested one before its user."""
    done: dict[str, MergedStruct] = {}

    def visit(name: str) -> None:
        if name not in done:
            for merged in structs[name].fields.values():
                if merged.is_struct:
                    visit(merged.wire_type)
            done[name] = structs[name]

    visit(root)
    return list(done.values())


def rename_clashes(sides: list[tuple[str, dict[str, MergedStruct]]]) -> None:
    """Give structs of one name but two meanings in request and response their owner's name too."""
    if len(sides) < 2:
        return
    (_, one), (_, other) = sides
    clashing = {n for n in one.keys() & other.keys() if deep_shape(one, n) != deep_shape(other, n)}
    for root, structs in sides:
        for name in clashing:
            structs[root + name] = structs.pop(name)
            structs[root + name].name = root + name
        for struct in structs.values():
            for merged in struct.fields.values():
                if merged.is_struct and merged.wire_type in clashing:
                    merged.wire_type = merged.plain = root + merged.wire_type


def deep_shape(structs: dict[str, MergedStruct], name: str) -> object:
    """Return a comparable value that describes a struct and everything in it."""
    struct = structs[name]
    inner = [deep_shape(structs, f.wire_type) for f in struct.fields.values() if f.is_struct]
    return repr(struct), inner


def module_source(title: str, messages: list[tuple[str, Kind]], versions: VersionRange) -> str:
    """Return the text of one schema module."""
    sides: list[tuple[str, dict[str, MergedStruct]]] = []
    for name, kind in messages:
        structs: dict[str, MergedStruct] = {}
        root = ""
        for version in range(versions.min, versions.max + 1):
            cls = load_entity_schema(name, version, kind)
            root = cls.__name__
            merge(cls, version, structs)
        for struct in structs.values():
            extension = EXTENSIONS.get(struct.name)
            if extension is not None:
                struct.fields[extension.name] = extension
                struct.order.append(extension.name)
        sides.append((root, structs))
    rename_clashes(sides)
    body: list[str] = []
    seen: set[str] = set()
    for root, structs in sides:
        for struct in ordered(structs, root):
            if struct.name not in seen:
                seen.add(struct.name)
                body += struct_source(struct, versions, root)
    text = "\n".join(body)
    lines = [f'"""{title}', "", "Generated by tools/generate_schema.py: do not edit.", '"""', ""]
    lines.append(f"from dataclasses import dataclass{', field' if 'field(' in text else ''}")
    lines.append("from typing import ClassVar")
    if "UUID" in text:
        lines.append("from uuid import UUID")
    return "\n".join(lines) + "\n" + text + "\n"


def modules() -> dict[str, str]:
    """Return the wanted text of every schema file by its name."""
    found = {
        "__init__.py": '"""The messages as plain dataclasses, one module per API (generated)."""\n'
    }
    for key, versions in SUPPORTED.items():
        if key in BY_HAND:
            continue
        name = key.name.lower()
        for version in range(versions.min, versions.max + 1):
            kio_class = load_entity_schema(name, version, EntityType.request)
            assert kio_class.__flexible__ == is_flexible(key, version), (name, version)
        title = f"{key.name} (api key {int(key)}), versions {versions}."
        messages: list[tuple[str, Kind]] = [(name, EntityType.request), (name, EntityType.response)]
        found[f"{name}.py"] = module_source(title, messages, versions)
    for name, versions in EMBEDDED.items():
        camel = "".join(part.capitalize() for part in name.split("_"))
        title = f"{camel}, versions {versions}: travels inside JoinGroup and SyncGroup."
        found[f"{name}.py"] = module_source(title, [(name, EntityType.data)], versions)
    return found


def formatted(files: dict[str, str]) -> dict[str, str]:
    """Return the text of every file as one run of ruff formats it."""
    with tempfile.TemporaryDirectory() as directory:
        for name, text in files.items():
            Path(directory, name).write_text(text)
        command = [sys.executable, "-m", "ruff", "format", "--quiet", "--no-cache"]
        subprocess.run([*command, "--config", str(ROOT / "ruff.toml"), directory], check=True)
        return {name: Path(directory, name).read_text() for name in files}


def main() -> int:
    """Write or check the files; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args().check
    TARGET.mkdir(exist_ok=True)
    stale = []
    for name, wanted in formatted(modules()).items():
        path = TARGET / name
        if not path.exists() or path.read_text() != wanted:
            stale.append(name)
            if not check:
                path.write_text(wanted)
    sys.stdout.write(f"{len(stale)} file(s) {'stale' if check else 'written'}: {stale}\n")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
