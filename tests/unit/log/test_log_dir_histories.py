"""What several log directories stand for together, and each for what lies in it (S8, S15)."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.common.log_dir_integrity import (
    MAX_BROKER_EPOCH,
    LogDirCondition,
    LogDirIntegrity,
    broker_epochs,
)
from kbroker.log.log_dir_histories import LogDirHistories
from kbroker.log.log_dir_history import LogDirHistory, assess

T0, T1 = ("t", 0), ("t", 1)
BOTH = ("A", "B")


def histories(
    files: dict[str, LogDirHistory | None], logs: Iterable[tuple[str, int]] = (), boot: str = "boot"
) -> LogDirHistories:
    """Return the histories of a broker that found *files*, by directory, None a new directory."""
    made = LogDirHistories(boot)
    for name, history in files.items():
        made.add(name, name.upper(), assess(history, None, boot, is_new=history is None), history)
    known = {name for history in files.values() if history for name in history.directories}
    made.conclude(logs, len(known - {name.upper() for name in files}))
    return made


def all_readable(files: dict[str, LogDirHistory | None]) -> LogDirHistories:
    """Return the histories of a broker that found *files*; directories that they name beyond are missing."""
    made = LogDirHistories("boot")
    for name, history in files.items():
        made.add(name, name.upper(), assess(history, None, "boot", is_new=history is None), history)
    made.conclude([T0], 0)
    return made


def files_of(
    made: LogDirHistories, *names: str, failed: Iterable[str] = ()
) -> dict[str, LogDirHistory | None]:
    return {name: made.history_of(name, failed) for name in names}


def after_a_loss_in_b() -> LogDirHistories:
    """Return a broker: a lay untouched in the run in which b lost power, and is not absent in its own file."""
    return histories(
        {
            "a": LogDirHistory("boot", broker_epochs((120, 120)), BOTH, None, ("B",), 120),
            "b": LogDirHistory("boot", broker_epochs((169, 169)), BOTH, None, ("A",), 169),
        },
        [T0],
    )


def test_a_directory_covers_the_logs_in_it_whatever_another_one_lost() -> None:
    made = after_a_loss_in_b()
    made.registering()
    assert made.registration() == LogDirIntegrity(
        LogDirCondition.CRASHED, broker_epochs((169, 169))
    )
    made.registered(200)
    assert made.vouched_for("a", T0) == broker_epochs((120, MAX_BROKER_EPOCH))
    assert made.vouched_for("a", T1) == broker_epochs((200, 200)), (
        "its log was not there at the start"
    )


def test_what_a_directory_covers_is_kept_over_a_run_that_published_it() -> None:
    made = after_a_loss_in_b()
    made.registering()
    half_way = histories(files_of(made, *"ab"), [T0])
    half_way.registering()
    assert half_way.vouched_for("a", T0) == broker_epochs((120, MAX_BROKER_EPOCH))
    half_way.registered(200)
    later = histories(files_of(half_way, *"ab"), [T0])
    later.registering()
    assert later.vouched_for("a", T0) == broker_epochs((120, 200))
    assert later.integrity == LogDirIntegrity(LogDirCondition.CRASHED, broker_epochs((169, 200)))


def test_before_a_log_begins_that_another_directory_lost_nothing_older_is_covered() -> None:
    made = after_a_loss_in_b()
    made.registering()
    made.registered(200)
    assert not made.before_new_log("b")
    assert made.before_new_log("a")
    assert not made.before_new_log("a"), "it was written once"
    later = histories(files_of(made, *"ab"), [T0, T1])
    later.registering()
    assert later.vouched_for("a", T1) == broker_epochs((169, 200))


def test_a_log_that_was_deleted_and_begun_again_is_another() -> None:
    made = after_a_loss_in_b()
    made.registering()
    made.registered(200)
    made.removed(T0)
    assert made.vouched_for("a", T0) == broker_epochs((200, 200))


def test_an_old_copy_covers_nothing_older_after_the_next_registration() -> None:
    made = histories(
        {
            "a": LogDirHistory("boot", broker_epochs((10, 63)), BOTH),
            "b": LogDirHistory("boot", broker_epochs((10, 150)), BOTH),
        },
        [T0],
    )
    made.registering()
    assert made.vouched_for("a", T0) == broker_epochs((10, 63))
    made.registered(200)
    later = histories(files_of(made, *"ab"), [T0])
    later.registering()
    assert later.vouched_for("a", T0) == broker_epochs((200, 200))


def test_a_broker_that_stops_while_it_registers_covers_every_later_epoch() -> None:
    made = histories({"a": LogDirHistory("boot", broker_epochs((10, 63)), ("A",))}, [T0])
    made.registering(70)
    history = made.history_of("a", ())
    assert history.intact == broker_epochs((10, 63), (71, MAX_BROKER_EPOCH))


def test_a_new_directory_covers_what_the_others_do() -> None:
    made = histories({"a": LogDirHistory("boot", broker_epochs((10, 63)), ("A",)), "b": None}, [T0])
    made.registering()
    assert made.registration() == LogDirIntegrity(LogDirCondition.CRASHED, broker_epochs((10, 63)))
    made.registered(70)
    assert histories(files_of(made, *"ab")).registration() == LogDirIntegrity(
        LogDirCondition.CRASHED, broker_epochs((10, 63), 70)
    )


def test_a_registration_does_not_cover_the_replicas_of_a_directory_that_failed() -> None:
    made = histories({"a": None, "b": None})
    made.registering()
    made.registered(10)
    made.registering(12)
    assert made.registration() == LogDirIntegrity(LogDirCondition.CLEAN, broker_epochs(10))
    made.registering(14)
    assert made.registration(has_failed=True) == LogDirIntegrity(
        LogDirCondition.PARTIAL, broker_epochs(10, (13, MAX_BROKER_EPOCH))
    )


def test_a_loss_is_reported_as_it_is_while_another_directory_has_failed() -> None:
    made = histories({"a": LogDirHistory("other boot", broker_epochs(10))})
    made.registering()
    assert made.registration(has_failed=True) == LogDirIntegrity(LogDirCondition.POWER_LOSS, None)


def test_a_missing_directory_may_have_held_any_replica() -> None:
    made = LogDirHistories("boot")
    history = LogDirHistory("boot", broker_epochs((10, 63)), BOTH)
    made.add("a", "A", assess(history, None, "boot", is_new=False), history)
    made.conclude([T0], 0)
    made.registering()
    assert made.registration() == LogDirIntegrity(LogDirCondition.PARTIAL, broker_epochs((10, 63)))
    assert made.vouched_for("a", T0) == broker_epochs((10, 63))
    assert made.history_of("a", ()).pending_loss is LogDirCondition.PARTIAL
    made.registered(70)
    assert made.history_of("a", ()) == LogDirHistory(
        "boot", broker_epochs((70, 70)), ("A",), None, (), 70
    )


def test_an_attempt_to_register_without_an_outcome_leaves_its_epoch_covered() -> None:
    made = histories({"a": LogDirHistory("boot", broker_epochs(10), ("A",))}, [T0])
    made.registering(40)
    assert made.registration().intact == broker_epochs(10)
    made.registering(60)  # the session of the first attempt expired
    made.registered(70)
    assert made.history_of("a", ()).intact == broker_epochs(10, (41, 70))
    made.registering(75)
    made.registered(80)
    assert made.history_of("a", ()).intact == broker_epochs(10, (41, 70), 80)


def test_the_next_attempt_covers_the_epoch_under_which_the_broker_was_elected_meanwhile() -> None:
    made = histories({"a": LogDirHistory("boot", broker_epochs(10), ("A",))}, [T0])
    made.registering(40)
    for after in (60, 65):
        made.registering(after)
        assert made.registration() == LogDirIntegrity(
            LogDirCondition.CRASHED, broker_epochs(10, (41, MAX_BROKER_EPOCH))
        )
        assert made.vouched_for("a", T0) == broker_epochs(10, (41, MAX_BROKER_EPOCH))
    made.registered(70)
    made.registering(75)
    assert made.registration().intact == broker_epochs(10, (41, 70))


def test_a_set_that_begins_with_the_next_registration_covers_the_epoch_of_a_lost_answer() -> None:
    """The broker was elected, or a topic was created on it, before the next attempt; nothing was lost since."""
    old_copy = {
        "a": LogDirHistory("boot", broker_epochs((10, 63)), BOTH),
        "b": LogDirHistory("boot", broker_epochs((10, 150)), BOTH),
    }
    for made, covered in (
        (histories(old_copy, [T0]), broker_epochs((10, 63), (161, MAX_BROKER_EPOCH))),
        (histories({"a": None}), broker_epochs((161, MAX_BROKER_EPOCH))),
        (
            histories({"a": LogDirHistory("other boot", broker_epochs(10), ("A",))}, [T0]),
            broker_epochs((161, MAX_BROKER_EPOCH)),
        ),
    ):
        made.registering(160)
        made.registering(180)
        assert made.registration().intact == covered
        if made.vouched_for("a", T0) is not None:
            assert made.vouched_for("a", T0) == covered
        made.registered(190)
        assert made.history_of("a", ()).intact == broker_epochs((161, 190))


def test_a_log_of_this_run_is_covered_under_the_epoch_of_a_lost_answer() -> None:
    made = histories({"a": None})
    made.registering(5)
    made.registered(10)
    made.registering(40)
    assert made.vouched_for("a", T1) == broker_epochs(10)
    made.registering(60)
    assert made.vouched_for("a", T1) == broker_epochs(10, (41, MAX_BROKER_EPOCH))


def test_a_refused_attempt_has_no_epoch() -> None:
    made = histories({"a": LogDirHistory("boot", broker_epochs(10), ("A",))}, [T0])
    made.registering(40)
    made.refused()
    assert made.history_of("a", ()).intact == broker_epochs(10)
    made.registering(60)
    made.registering(70)
    assert made.registration().intact == broker_epochs(10, (61, MAX_BROKER_EPOCH))
    made.refused()
    assert made.history_of("a", ()).intact == broker_epochs(10, (61, MAX_BROKER_EPOCH))
    made.registering(80)
    made.registered(90)
    assert made.history_of("a", ()).intact == broker_epochs(10, (61, 90))


def test_directories_that_were_all_restored_do_not_cover_what_they_never_held() -> None:
    made = histories({"a": LogDirHistory("boot", broker_epochs(10), ("A",))}, [T0])
    made.registering(40)
    killed = made.history_of("a", ())
    assert killed.intact == broker_epochs(10, (41, MAX_BROKER_EPOCH)), (
        "epochs up to 40 are of another time"
    )
    later = histories({"a": killed}, [T0])
    later.registering(60)
    later.registered(70)
    assert later.history_of("a", ()).intact == broker_epochs(10, (41, 70))


def test_a_file_that_could_not_be_written_reports_a_loss_only_once() -> None:
    """The disk of A was replaced while B could be read, and not written: B names the first disk of A for ever."""
    first = LogDirHistory("boot", broker_epochs((67, 67)), ("OLD", "B"))
    made = all_readable({"a": None, "b": first})
    made.registering()
    assert made.registration(has_failed=True).condition is LogDirCondition.PARTIAL
    made.registered(102)
    written = made.history_of("a", ["b"])
    assert (written.absent, written.lost_at) == (("B",), 102)
    again = all_readable({"a": written, "b": first})
    assert again.missing_directories == set()
    assert again.integrity.covers(102)
    again.registering()
    again.registered(200)
    assert again.before_new_log("b"), "a log of the first disk must not be covered"
    covered = again.vouched_for("b", T1)
    assert covered is None or not covered.covers(67)


def test_a_file_of_an_absent_directory_counts_if_no_loss_was_reported_since() -> None:
    """B knows a directory C that A never knew: without a reported loss C is missing."""
    again = all_readable(
        {
            "a": LogDirHistory("boot", broker_epochs((10, 10), (30, 30)), ("A", "B"), None, ("B",)),
            "b": LogDirHistory(
                "boot", broker_epochs((10, 10), (20, 20)), ("A", "B", "C"), None, ("A",)
            ),
        }
    )
    assert again.missing_directories == {"C"}
