"""Lists of regular expressions, as MirrorMaker 2 writes them: separated by commas, each to match a whole name."""

from __future__ import annotations

import re


def compiled(text: str) -> re.Pattern[str]:
    """Compile a comma-separated list of regular expressions; ValueError says which is wrong."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        try:
            re.compile(part)
        except re.error as problem:
            raise ValueError(f"{part!r} is not a regular expression: {problem}") from None
    return re.compile("|".join(f"(?:{part})" for part in parts) or r"(?!)")
