"""What several log directories stand for together, and each for what lies in it (S8, S15)."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.log.incarnation import OPEN_END, Memory, Past, Start, judge
from kbroker.log.lives import Lives

T0, T1 = ("t", 0), ("t", 1)
BOTH = ("A", "B")


def lives(
    files: dict[str, Memory | None], logs: Iterable[tuple[str, int]] = (), boot: str = "boot"
) -> Lives:
    """Return the lives of a broker that found *files*, by directory, None a new directory."""
    made = Lives(boot)
    for name, memory in files.items():
        made.take(name, name.upper(), judge(memory, None, boot, is_new=memory is None), memory)
    known = {name for memory in files.values() if memory for name in memory.directories}
    made.judge(logs, len(known - {name.upper() for name in files}))
    return made


def files_of(made: Lives, *names: str, failed: Iterable[str] = ()) -> dict[str, Memory | None]:
    return {name: made.memory(name, failed) for name in names}


def after_a_loss_in_b() -> Lives:
    """Return a broker of which a lay untouched in the life in which b lost power: not absent to itself."""
    return lives(
        {
            "a": Memory("boot", 120, 120, BOTH, None, ("B",), 120),
            "b": Memory("boot", 169, 169, BOTH, None, ("A",), 169),
        },
        [T0],
    )


def test_a_directory_stands_for_what_lies_in_it_whatever_another_lost() -> None:
    made = after_a_loss_in_b()
    assert made.registering() == Past(Start.CRASHED, (169, 169))
    made.registered(200)
    assert made.claim("a", T0) == (120, OPEN_END)
    assert made.claim("a", T1) == (200, 200), "its log was not there at the start"


def test_what_a_directory_stands_for_outlives_the_life_that_said_so() -> None:
    made = after_a_loss_in_b()
    made.registering()
    half_way = lives(files_of(made, *"ab"), [T0])
    half_way.registering()
    assert half_way.claim("a", T0) == (120, OPEN_END)
    half_way.registered(200)
    later = lives(files_of(half_way, *"ab"), [T0])
    later.registering()
    assert later.claim("a", T0) == (120, 200)
    assert later.past == Past(Start.CRASHED, (169, 200))


def test_before_a_log_that_another_directory_lost_is_begun_nothing_older_is_claimed() -> None:
    made = after_a_loss_in_b()
    made.registering()
    made.registered(200)
    assert not made.begins("b")
    assert made.begins("a")
    assert not made.begins("a"), "it was written once"
    later = lives(files_of(made, *"ab"), [T0, T1])
    later.registering()
    assert later.claim("a", T1) == (169, 200)


def test_a_log_that_was_deleted_and_begun_again_is_another() -> None:
    made = after_a_loss_in_b()
    made.registering()
    made.registered(200)
    made.gone(T0)
    assert made.claim("a", T0) == (200, 200)


def test_a_directory_of_the_past_claims_nothing_older_once_it_has_lived_again() -> None:
    made = lives(
        {"a": Memory("boot", 10, 63, BOTH), "b": Memory("boot", 10, 150, BOTH)}, [T0]
    )  # fmt: skip
    made.registering()
    assert made.claim("a", T0) == (10, 63)
    made.registered(200)
    later = lives(files_of(made, *"ab"), [T0])
    later.registering()
    assert later.claim("a", T0) == (200, 200)


def test_who_is_stopped_while_he_registers_does_not_know_which_epoch_he_has() -> None:
    made = lives({"a": Memory("boot", 10, 63, ("A",))}, [T0])
    made.registering()
    memory = made.memory("a", ())
    assert (memory.since, memory.until) == (10, None)


def test_a_directory_that_was_added_claims_what_the_others_do() -> None:
    made = lives({"a": Memory("boot", 10, 63, ("A",)), "b": None}, [T0])
    assert made.registering() == Past(Start.CRASHED, (10, 63))
    made.registered(70)
    assert lives(files_of(made, *"ab")).registering() == Past(Start.CRASHED, (10, 70))


def test_of_a_directory_that_is_missing_nobody_knows_what_was_in_it() -> None:
    made = Lives("boot")
    memory = Memory("boot", 10, 63, BOTH)
    made.take("a", "A", judge(memory, None, "boot", is_new=False), memory)
    made.judge([T0], 0)
    assert made.registering() == Past(Start.PARTIAL, (10, 63))
    assert made.claim("a", T0) == (10, 63)
    assert made.memory("a", ()).untold is Start.PARTIAL
    made.registered(70)
    assert made.memory("a", ()) == Memory("boot", 70, 70, ("A",), None, (), 70)
