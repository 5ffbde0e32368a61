"""Record timestamps as text: as precise as the axis that they label, and any 64-bit number."""

import pytest

from spark_jobs.report.times import moment


@pytest.mark.parametrize(
    ("timestamp_ms", "step_ms", "text"),
    [
        (1_000_000_020_999, 60_000, "2001-09-09 01:47"),
        (1_000_000_020_999, 1000, "2001-09-09 01:47:00"),
        (1_000_000_020_999, 999, "2001-09-09 01:47:00.999"),
        (1_000_000_020_007, 20, "2001-09-09 01:47:00.007"),
        (-1, 20, "1969-12-31 23:59:59.999"),
        (-1, 1000, "1969-12-31 23:59:59"),
        ((1 << 63) - 1, 20, f"{(1 << 63) - 1} ms"),
        (-(1 << 63), 1000, f"{-(1 << 63)} ms"),
    ],
)
def test_a_time_is_as_precise_as_its_step(timestamp_ms: int, step_ms: int, text: str) -> None:
    """The labels of a second's axis were the same second five times."""
    assert moment(timestamp_ms, step_ms) == text
