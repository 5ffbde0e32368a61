"""Command lines of Kafka's tools as joptsimple parses them: ``--name value``, ``--name=value``, ``-name value``.

A value is the next word, whatever it looks like. An option may be repeated; `Given.value` refuses that, as joptsimple
does, when it is used. Names are complete: Kafka 3.9's tools accept no abbreviations. Words that belong to no option
are ignored, as in Kafka. Values are converted when they are used, so an error has its place among others as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

FLAG, REQUIRED, OPTIONAL = "flag", "required", "optional"
"""Whether an option takes a value."""


class OptionError(Exception):
    """A command line that joptsimple refuses; the text is its."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option *name*; *value* names its value in the help, "" for a flag.

    *only_with*: it may only be given together with one of these. *separator* splits a value into several. *refused*
    is the reason why this option of Kafka is not honoured; *is_from_kafka* is false for an option of an
    earlier Kafka. *is_required*, or *required_unless* another one.
    """

    name: str
    text: str = ""
    value: str = ""
    kind: type = str
    default: Any = None
    takes: str = ""
    only_with: tuple[str, ...] = ()
    separator: str = ""
    refused: str = ""
    is_from_kafka: bool = True
    required_unless: str = ""

    @property
    def argument(self) -> str:
        """Whether it takes a value: FLAG, REQUIRED or OPTIONAL."""
        return self.takes or (REQUIRED if self.value else FLAG)

    def __str__(self) -> str:
        return f"[{self.name}]"


def not_honoured(name: str, reason: str, *, takes: str = REQUIRED, kafka: bool = True) -> Option:
    """Return an option that is refused with *reason*."""
    return Option(name, refused=reason, takes=takes, is_from_kafka=kafka)


COMMON = (
    Option("help", "Print the options."),
    Option("version", "Print the version of Kafka that has these options."),
)


class Given:
    """The options of one command line."""

    def __init__(self, known: dict[str, Option], words: Sequence[str]) -> None:
        self._known = known
        self._values: dict[str, list[str]] = {}
        self.order: list[str] = []
        """The names of options, as often and in the order as they were given."""
        self.words = tuple(words)

    def add(self, option: Option, text: str | None) -> None:
        """Add an option, with a value if *text* is not None."""
        self.order.append(option.name)
        values = self._values.setdefault(option.name, [])
        if text is not None:
            values += text.split(option.separator) if option.separator else [text]

    def has(self, name: str) -> bool:
        """Return whether *name* is given."""
        return name in self._values

    def value(self, name: str) -> Any:
        """Return the value of *name*, or its default; raise `OptionError` for more than one."""
        texts = self._values.get(name, [])
        if len(texts) > 1:
            raise OptionError(
                f"Found multiple arguments for option {name}, but you asked for only one"
            )
        return self._converted(name, texts[0]) if texts else self._known[name].default

    def values(self, name: str) -> list[Any]:
        """Return all values of *name*; without one its default, if it has one."""
        default = self._known[name].default
        found = [self._converted(name, text) for text in self._values.get(name, [])]
        return found or ([] if default is None else [default])

    def _converted(self, name: str, text: str) -> Any:
        kind = self._known[name].kind
        if kind is str:
            return text
        try:
            number = kind(text)
        except ValueError:
            raise OptionError(f"Cannot parse argument '{text}' of option {name}") from None
        if text != text.strip() or "_" in text:
            raise OptionError(f"Cannot parse argument '{text}' of option {name}")
        return number


def parse(options: Iterable[Option], words: Sequence[str]) -> Given:
    """Parse the words behind the name of the tool; raise `OptionError`."""
    known = {option.name: option for option in options}
    given = Given(known, words)
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            continue
        name, equals, text = word.lstrip("-").partition("=")
        option = known.get(name)
        if option is None:
            # Without a name that is known, one dash is a cluster of options of one letter, which no tool has.
            unknown = name if word.startswith("--") else name[:1]
            raise OptionError(f"{unknown} is not a recognized option")
        if option.refused:
            because = "not supported" if option.is_from_kafka else "not a recognized option"
            raise OptionError(f"{name} is {because}: {option.refused}")
        given.add(option, _argument(option, rest, text if equals else None, known))
    _check(known, given)
    return given


def _argument(
    option: Option, rest: list[str], attached: str | None, known: dict[str, Option]
) -> str | None:
    if option.argument == FLAG:
        return None
    if attached is not None:
        return attached
    if option.argument == REQUIRED:
        if not rest:
            raise OptionError(f"Option {option.name} requires an argument")
        return rest.pop(0)
    if rest and not rest[0].startswith("-"):
        return rest.pop(0)
    return None


def _check(known: dict[str, Option], given: Given) -> None:
    if given.has("help") or given.has("version"):
        return
    missing = [
        name
        for name, option in known.items()
        if option.required_unless and not given.has(name) and not given.has(option.required_unless)
    ]
    if missing:
        raise OptionError(f"Missing required option(s) [{', '.join(missing)}]")
    for name, option in known.items():
        if option.only_with and given.has(name) and not any(map(given.has, option.only_with)):
            raise OptionError(
                f"Option(s) [{name}] are unavailable given other options on the command line"
            )
