"""Results per name: a value, or the error that the cluster returned for that name only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from kclient.wire.errors import ErrorCode, KafkaError, for_code

N = TypeVar("N")
T = TypeVar("T")

_EXPLAINED_BY_BROKERS = (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_PARTITIONS)
"""Errors with the rule as hint: a broker's message has the part of the rule that counts."""


def error_of(code: int, about: object, message: str | None = None) -> KafkaError:
    """Return the error for *code* about a name, with the broker's error message if it sent one.

    A message that has the name already gets no other one, and the hint is left out if the message has it, too.
    """
    kind = for_code(code)
    if not message:
        return _received(kind(f"{about}: {_general(code)}"), None)
    text = message.removeprefix(f"{kind.code.name}: ")
    is_explained = text.endswith(")") or code in _EXPLAINED_BY_BROKERS
    if not has_name(text, name_in(about)):
        text = f"{about}: {text}"
    return _received(kind(text, hint="" if is_explained else None), message)


def _received(problem: KafkaError, message: str | None) -> KafkaError:
    problem.is_response, problem.broker_message = True, message
    return problem


def name_in(about: object) -> str:
    """Return the name in a subject such as "topic 'orders'" or "orders-0"."""
    _, quote, rest = str(about).partition("'")
    return rest.rpartition("'")[0] if quote else str(about)


def has_name(text: str, name: str) -> bool:
    """Return whether *text* is about *name*: it is quoted, or stands behind a noun such as topic."""
    quoted = re.escape(name)
    return bool(
        re.search(
            rf"'{quoted}'|\b(topic|group|partition|id) {quoted}(?![\w.-])", text, re.IGNORECASE
        )
    )


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
