"""Lists of regular expressions in MirrorMaker 2's syntax: separated by commas, each matches a whole name."""

from __future__ import annotations

import re


def compiled(text: str) -> re.Pattern[str]:
    """Compile a comma-separated list of regular expressions; ValueError names the invalid one."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        try:
            re.compile(part)
        except re.error as problem:
            raise ValueError(f"{part!r} is not a regular expression: {problem}") from None
    return re.compile("|".join(f"(?:{part})" for part in parts) or r"(?!)")
