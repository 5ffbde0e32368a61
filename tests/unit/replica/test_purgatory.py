"""Waiting requests are completed once, by an event at a key they watch."""

from __future__ import annotations

from kbroker.replica.core.purgatory import DelayedOperation, Purgatory


def make() -> tuple[Purgatory[str], list[Exception]]:
    errors: list[Exception] = []
    return Purgatory(errors.append), errors


def test_only_those_who_watch_a_key_are_asked() -> None:
    purgatory, _ = make()
    asked: list[str] = []
    for name in ("a", "b"):
        purgatory.add(DelayedOperation([name], lambda name=name: bool(asked.append(name)) or True))  # type: ignore[misc]
    assert purgatory.happened("a") == 1
    assert asked == ["a"]
    assert len(purgatory) == 1


def test_who_is_not_done_waits_on() -> None:
    purgatory, _ = make()
    answers = iter([False, True, True])
    purgatory.add(DelayedOperation(["a", "b"], lambda: next(answers)))
    assert [purgatory.happened(key) for key in ("a", "b", "a")] == [0, 1, 0]
    assert not purgatory.watched("a")


def test_who_is_removed_is_not_completed() -> None:
    purgatory, _ = make()
    waiting = DelayedOperation(["a"], lambda: True)
    purgatory.add(waiting)
    purgatory.remove(waiting)
    assert purgatory.happened("a") == 0
    assert len(purgatory) == 0


def test_one_that_breaks_does_not_break_the_others() -> None:
    purgatory, errors = make()
    asked = []

    def broken() -> bool:
        raise RuntimeError("broken")

    purgatory.add(DelayedOperation(["a"], broken))
    purgatory.add(DelayedOperation(["a"], lambda: bool(asked.append(1)) or True))
    assert purgatory.happened("a") == 2
    assert asked == [1]
    assert [str(error) for error in errors] == ["broken"]


def test_one_that_is_removed_while_another_completes_is_left_alone() -> None:
    purgatory, _ = make()
    completed: list[str] = []
    waiting: dict[str, DelayedOperation[str]] = {}

    def complete(name: str, other: str) -> bool:
        completed.append(name)
        purgatory.remove(waiting[other])
        return True

    waiting["x"] = DelayedOperation(["a"], lambda: complete("x", "y"))
    waiting["y"] = DelayedOperation(["a"], lambda: complete("y", "x"))
    purgatory.add(waiting["x"])
    purgatory.add(waiting["y"])
    purgatory.happened("a")
    assert len(completed) == 1
