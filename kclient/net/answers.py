"""Results per name: a value, or the error that the cluster returned for that name only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from kclient.wire.errors import KafkaError, for_code

N = TypeVar("N")
T = TypeVar("T")


def error_of(code: int, about: object, message: str | None = None) -> KafkaError:
    """Return the error for *code* about a name, with the broker's error message if it sent one."""
    kind = for_code(code)
    if not message:
        return kind(f"{about}: {_general(code)}")
    text = message.removeprefix(f"{kind.code.name}: ")
    return kind(f"{about}: {text}", hint="" if text.endswith(")") else None)


def raise_or_return(
    answers: Mapping[N, T | KafkaError], raise_errors: bool
) -> dict[N, T | KafkaError]:
    """Return *answers*; with *raise_errors* raise the first error among them."""
    if raise_errors:
        for answer in answers.values():
            if isinstance(answer, KafkaError):
                raise answer
    return dict(answers)


def _general(code: int) -> str:
    doc = for_code(code).__doc__ or ""
    return doc.partition("\n")[0].rstrip(".").lower()
