"""The summary of many simulated schedules."""

from tests.simulation.script import parse
from tests.simulation.simulation import Result
from tests.simulation.tally import Tally

SCRIPT = """# seed 7, brokers 3, disks 1
1.0 create a 1
2.0 produce a 0 all 1
3.0 kill 2
4.0 start 2
5.0 zktrail 0.3
6.0 zktrail
20.0 kill 1
"""


def test_what_was_played_is_counted_and_what_was_broken_is_named() -> None:
    tally = Tally(100)
    whole = Result(parse(SCRIPT), None, 1000, 30.0, 1, 4.5, acknowledged=3, consumed=2)
    broken = Result(parse(SCRIPT), "StrongIsr: a-0", 500, 10.0, 1)
    for result in (whole, whole, broken):
        tally.take(result)
    assert tally.line(2.0) == "3 of 100 seeds, at seed 7: 1.5 a second, 1 minutes left, 1 failed"
    page = [line.split() for line in tally.page(2.0).splitlines()]
    assert ["steps", "2500", "(1250", "a", "second)"] in page
    assert ["kill", "5", "zktrail", "3"] in page  # the last kill of the broken one never was
    assert ["create", "3", "produce", "3"] in page
    assert page[-1] == ["StrongIsr", "1:", "seeds", "7"]
    assert "acknowledged     6 batches; consumed: 4 fetches" in tally.page(2.0)


def test_nothing_was_broken() -> None:
    tally = Tally(1)
    tally.take(Result(parse(SCRIPT), None, 10, 30.0, 1))
    assert tally.page(1.0).splitlines()[-1] == "failures: none"
