"""Records from lines, as kafka-console-producer reads them: its LineMessageReader. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kclient.cli.delivery import Given as Record

CLASSES = (
    "kafka.tools.ConsoleProducer$LineMessageReader",
    "org.apache.kafka.tools.LineMessageReader",
)

_SEPARATORS = {
    "key.separator": "\t",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
}
_FLAGS = ("parse.key", "parse.headers", "ignore.error")
PROPERTIES = (*_FLAGS, *_SEPARATORS, "null.marker")


class LineError(ValueError):
    """A line, or a property, that the reader refuses."""


class LineReader:
    """Reads lines with the given properties; raise `LineError` for one that it does not have."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        unknown = sorted(properties.keys() - set(PROPERTIES))
        if unknown:
            raise LineError(
                f"property {unknown[0]} is not supported: the line reader has {', '.join(PROPERTIES)}"
            )
        self._with_key, self._with_headers, self._ignores = (
            properties.get(name, "").strip().lower() == "true" for name in _FLAGS
        )
        texts = {name: properties.get(name, usual) for name, usual in _SEPARATORS.items()}
        marker = properties.get("null.marker")
        _check_separators(texts, marker)
        self._key_separator = texts["key.separator"].encode()
        self._headers_delimiter = texts["headers.delimiter"].encode()
        try:
            self._between_headers = re.compile(texts["headers.separator"].encode())
        except re.error as problem:
            raise LineError(f"headers.separator is no regular expression: {problem}") from None
        self._in_header = texts["headers.key.separator"].encode()
        self._null = None if marker is None else marker.encode()
        self._is_plain = not (self._with_key or self._with_headers or marker is not None)
        self._number = 0

    def __call__(self, line: bytes) -> Record:
        """Return the record of a line."""
        if self._is_plain:
            return Record(None, line, [])
        self._number += 1
        headers, rest = self._split(
            self._with_headers, line, self._headers_delimiter, "headers delimiter", line
        )
        key, value = self._split(self._with_key, rest, self._key_separator, "key separator", line)
        has_headers = headers is not None and headers != self._null
        return Record(
            self._or_null(key),
            self._or_null(value),
            self._headers(headers) if has_headers and headers is not None else [],
        )

    def _or_null(self, data: bytes | None) -> bytes | None:
        return None if data == self._null else data

    def _split(
        self, enabled: bool, rest: bytes, separator: bytes, name: str, line: bytes
    ) -> tuple[bytes | None, bytes]:
        if not enabled:
            return None, rest
        before, found, after = rest.partition(separator)
        if found:
            return before, after
        if self._ignores:
            return None, rest
        shown = line.decode("utf-8", "replace")
        raise LineError(f"No {name} found on line number {self._number}: '{shown}'")

    def _headers(self, text: bytes) -> list[tuple[str, bytes | None]]:
        found: list[tuple[str, bytes | None]] = []
        parts = self._between_headers.split(text)
        while len(parts) > 1 and not parts[-1]:
            parts.pop()  # as Java's split
        for pair in parts:
            name, separator, value = pair.partition(self._in_header)
            if not separator:
                if not self._ignores:
                    shown = pair.decode("utf-8", "replace")
                    raise LineError(
                        f"No header key separator found in pair '{shown}' on line number {self._number}"
                    )
                found.append((pair.decode("utf-8", "replace"), None))
                continue
            if name == self._null:
                marker = name.decode("utf-8", "replace")
                raise LineError(
                    f"Header keys should not be equal to the null marker '{marker}' as they can't be null"
                )
            found.append((name.decode("utf-8", "replace"), self._or_null(value)))
        return found


def _check_separators(texts: Mapping[str, str], marker: str | None) -> None:
    for name, text in texts.items():
        if not text:
            raise LineError(f"{name} is empty")
    pairs = (
        ("headers.delimiter", "headers.separator"),
        ("headers.delimiter", "headers.key.separator"),
        ("headers.separator", "headers.key.separator"),
    )
    for one, other in pairs:
        if texts[one] == texts[other]:
            raise LineError(f"{one} and {other} may not be equal")
    for name in (
        "key.separator",
        "headers.separator",
        "headers.delimiter",
        "headers.key.separator",
    ):
        if marker == texts[name]:
            raise LineError(f"null.marker and {name} may not be equal")
