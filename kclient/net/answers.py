"""One answer per name: a result, or the error that the cluster gave for just this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from kclient.wire.errors import KafkaError, for_code

N = TypeVar("N")
T = TypeVar("T")


def error_of(code: int, about: object, message: str | None = None) -> KafkaError:
    """Return the error of *code* *about* a name, in the broker's own words if it gave any."""
    kind = for_code(code)
    if not message:
        return kind(f"{about}: {_general(code)}")
    text = message.removeprefix(f"{kind.code.name}: ")
    return kind(f"{about}: {text}", hint="" if text.endswith(")") else None)


def settle(answers: Mapping[N, T | KafkaError], raise_errors: bool) -> dict[N, T | KafkaError]:
    """Return *answers*, or raise the first error among them if *raise_errors*."""
    if raise_errors:
        for answer in answers.values():
            if isinstance(answer, KafkaError):
                raise answer
    return dict(answers)


def _general(code: int) -> str:
    doc = for_code(code).__doc__ or ""
    return doc.partition("\n")[0].rstrip(".").lower()
