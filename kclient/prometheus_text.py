"""The text format that Prometheus and node_exporter's textfile collector read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal["counter", "gauge"]


def family_head(name: str, kind: Kind, text: str) -> str:
    """Return the lines before the samples of the family *name*; *text* is a sentence without its full stop."""
    return f"# HELP {name} {text}.\n# TYPE {name} {kind}\n"


def label_pairs(pairs: Mapping[str, str]) -> str:
    """Return the labels of a sample, without the braces."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
