"""Lists of regular expressions in MirrorMaker 2's syntax: separated by commas, each matches a whole name.

Expressions are Python's. Java's that mean something else in Python are refused: set operations in brackets, and a
quantifier that the comma splits. Flags at the start, such as ``(?i)``, hold for their expression alone, as in a list of
one.
"""

from __future__ import annotations

import re
import warnings

_NOT_COMPILED = (re.error, OverflowError, RecursionError)
"""What `re.compile` raises: also for a repetition above 2^32, and for too many levels of groups."""

_FLAGS = re.compile(r"\(\?([a-zA-Z]+)\)")


def compiled(text: str) -> re.Pattern[str]:
    """Compile a comma-separated list of regular expressions; ValueError names the invalid one."""
    parts = [_checked(part.strip()) for part in text.split(",") if part.strip()]
    try:
        return re.compile("|".join(parts) or r"(?!)")
    except _NOT_COMPILED as problem:  # such as two groups of one name
        raise ValueError(f"{text!r} is not a list of regular expressions: {problem}") from None


def _checked(part: str) -> str:
    """Return *part* as a group with its own flags."""
    flags = _FLAGS.match(part)
    group = f"(?{flags[1]}:{part[flags.end() :]})" if flags else f"(?:{part})"
    try:
        if part.count("{") != part.count("}"):
            raise ValueError("a comma ends it, and it has one brace of a pair")
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            re.compile(group)
    except (*_NOT_COMPILED, ValueError, FutureWarning) as problem:
        raise ValueError(f"{part!r} is not a regular expression: {problem}") from None
    return group


def escaped(name: str) -> str:
    r"""Return the regular expression of the topic *name*.

    >>> escaped("orders.v1")
    'orders\\.v1'
    """
    return name.replace(".", r"\.")  # a topic name has no other special character
