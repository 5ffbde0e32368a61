"""kafka-dump-log: the content of files of a log directory, without a broker."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from kclient.cli.kafka_tools.options import OPTIONAL, Given, Option, OptionError, not_honoured
from kclient.cli.kafka_tools.tool import FAILED, Failure, Tool, print_error, require

_API, _OLD = "org.apache.kafka.tools.api.", "kafka.serializer."
_STRING = f"{_API}StringDecoder"
_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
_NO_DECODER = "records of Kafka's internal topics are not decoded; kbroker has offsets and transactions in ZooKeeper"
_WHOLE_FILE = 2_147_483_647

OPTIONS = (
    Option("print-data-log", "Print keys and values of records, too."),
    Option("verify-index-only", "Compare indexes with their segments, without their entries."),
    Option("index-sanity-check", "Check only whether a broker would build an index again."),
    Option("files", "The files, separated by commas; required.", "file1, file2, ..."),
    Option("max-message-size", "The size of the largest message.", "size", int, 5_242_880),
    Option("max-bytes", "Read this much of each segment.", "size", int, _WHOLE_FILE),
    Option("deep-iteration", "Print the records of each batch."),
    Option("value-decoder-class", "The decoder of values.", "class", str, _STRING, takes=OPTIONAL),
    Option("key-decoder-class", "The decoder of keys.", "class", str, _STRING, takes=OPTIONAL),
    Option("skip-record-metadata", "Print keys and values only."),
    not_honoured("offsets-decoder", _NO_DECODER, takes="flag"),
    not_honoured("transaction-log-decoder", _NO_DECODER, takes="flag"),
    not_honoured("cluster-metadata-decoder", "only clusters with KRaft have such records", takes="flag"),
    not_honoured("remote-log-metadata-decoder", "kbroker has no tiered storage (KIP-405)", takes="flag"),
)  # fmt: skip

Decode = Callable[[bytes], str]


def _number(code: str) -> Decode:
    size = struct.calcsize(code)

    def decode(data: bytes) -> str:
        if len(data) != size:
            raise Failure(f"{len(data)} bytes are no number of {size} bytes")
        return str(struct.unpack(code, data)[0])

    return decode


DECODERS = {
    "StringDecoder": lambda data: data.decode("utf-8", "replace"),
    "LongDecoder": _number(">q"),
    "IntegerDecoder": _number(">i"),
}


def main(given: Given) -> int | None:
    """Check the command line and print the files."""
    require(given, "files")
    try:
        return _dump(given)
    except (Failure, OptionError) as problem:
        return print_error(problem)


def _dump(given: Given) -> int:
    from kclient.log_files.dump import Dump, DumpOptions

    value, key = _decoder(given, "value-decoder-class"), _decoder(given, "key-decoder-class")

    def parse(of_key: bytes | None, of_value: bytes | None) -> tuple[str | None, str | None]:
        return None if of_key is None else key(of_key), None if of_value is None else value(
            of_value
        )

    has_decoder = given.has("value-decoder-class") or given.has("key-decoder-class")
    max_bytes = given.value("max-bytes")
    found = Dump(
        DumpOptions(
            deep_iteration=given.has("deep-iteration"),
            print_data=given.has("print-data-log") or has_decoder,
            skip_record_metadata=given.has("skip-record-metadata"),
            index_sanity_check=given.has("index-sanity-check"),
            verify_index_only=given.has("verify-index-only"),
            max_bytes=None if max_bytes == _WHOLE_FILE else max_bytes,
            max_message_size=given.value("max-message-size"),
            parse=parse,
        )
    )
    deprecations = _deprecations(given)
    for name in given.value("files").split(","):
        path = Path(name)
        if path.suffix not in _SUFFIXES:
            print(f"Dumping {path}", flush=True)
            print_error(f"Ignoring unknown file {path}")
            continue
        try:
            for number, line in enumerate(found.lines(path)):
                print(line)
                for text in deprecations if number == 0 and path.suffix == ".log" else ():
                    print(text)
        except ValueError as problem:
            raise Failure(str(problem)) from None
        except OSError as problem:
            if isinstance(problem, BrokenPipeError):
                raise
            raise Failure(f"{problem.filename or path} ({problem.strerror})") from None
    for line in found.findings():
        print_error(line)
    return FAILED if found.unreadable else 0


def _decoder(given: Given, option: str) -> Decode:
    name = given.value(option)
    simple = name.removeprefix(_API).removeprefix(_OLD)
    if simple not in DECODERS:
        raise Failure(
            f"--{option} {name} is not supported: kclient cannot load Java classes, and has {', '.join(DECODERS)} of "
            f"{_API.rstrip('.')}"
        )
    return DECODERS[simple]


def _deprecations(given: Given) -> list[str]:
    """Return the lines about classes that have a new name; Kafka prints them for each segment."""
    return [
        f"{name} is deprecated. Please use {_API}{name.removeprefix(_OLD)} instead"
        for name in map(given.value, ("value-decoder-class", "key-decoder-class"))
        if name.startswith(_OLD)
    ]


TOOL = Tool(
    "kafka-dump-log",
    "This tool helps to parse a log file and dump its contents to the console, useful for debugging a seemingly "
    "corrupt log segment.",
    OPTIONS,
    main,
    differs=(
        "Java classes cannot be loaded: decoders are those of String, Long and Integer.",
        "Where a file cannot be read on, a line names the byte and the reason; the exit code is 1, as after Java's "
        "exception.",
    ),
)
