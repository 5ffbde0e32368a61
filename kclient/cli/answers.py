"""Answers by name: a line or a row for each, its error, and the exit code of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from kclient.cli.exit_codes import FAILED, PARTLY_FAILED
from kclient.cli.output import print_error, show
from kclient.cli.settings import Settings
from kclient.net.answers import has_name
from kclient.wire.errors import KafkaError

_SHOWN_PROBLEMS = 3
K = TypeVar("K")
A = TypeVar("A")


def print_problems(problems: Counter[str]) -> None:
    """Print the most frequent errors of records, with the number of their records."""
    for problem, count in problems.most_common(_SHOWN_PROBLEMS):
        print_error(f"{problem}" + (f" ({count} records)" if count > 1 else ""))


def about(name: str, problem: KafkaError) -> str:
    """Return the text of *problem* with *name*, which is there once."""
    return str(problem) if has_name(str(problem), name) else f"{name}: {problem}"


def good_answers(
    answers: Mapping[K, A | KafkaError], named: Callable[[K], str] = str
) -> dict[K, A]:
    """Return the answers that are no errors; print each error with the name of its subject."""
    good: dict[K, A] = {}
    for subject, answer in answers.items():
        if isinstance(answer, KafkaError):
            print_error(about(named(subject), answer))
        else:
            good[subject] = answer
    return good


def print_answers(
    settings: Settings,
    answers: Mapping[str, Any],
    line: Callable[[str, Any], str],
    accepted: Mapping[type[KafkaError], str] | None = None,
) -> int:
    """Print the line of each answer, by name, or its error; return the exit code.

    The lines are for people: there are none with -q, and rows of names and errors in their place with --format. An
    *accepted* error is no failure: its value is the message for operators, with ``{name}``.
    """
    met = {
        name: next(text for kind, text in (accepted or {}).items() if isinstance(answer, kind))
        for name, answer in answers.items()
        if isinstance(answer, tuple(accepted or ()))
    }
    for name, text in met.items():
        settings.note(text.format(name=name))
    good = good_answers({name: each for name, each in answers.items() if name not in met})
    if not settings.is_text:
        errors = {name: str(answers[name]) for name in answers.keys() - good.keys() - met.keys()}
        rows = [{"name": name, "error": errors.get(name)} for name in answers]
        show(rows, ("name", "error"), settings.format)
    elif not settings.quiet:
        for name, answer in good.items():
            click.echo(line(name, answer))
    return code_for(len(good) + len(met), len(answers))


def code_for(good: int, total: int) -> int:
    """Return the exit code of a command about *total* names, *good* of which succeeded."""
    if good >= total:
        return 0
    return PARTLY_FAILED if good else FAILED
