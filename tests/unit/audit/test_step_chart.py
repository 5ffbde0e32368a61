"""The pictures of kaudit are valid PNG files with the right pixels at the right places."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from spark_jobs import step_chart
from spark_jobs.raster import Canvas, text_width
from spark_jobs.step_chart import MOST_STEPS, Panel, chart, steps

MINUTE = 60_000
BLUE, AMBER, RED = (36, 71, 107), (201, 147, 10), (205, 145, 154)
GREEN, LIMIT = (60, 130, 90), (190, 30, 45)


def decoded(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Decode a PNG of 8-bit RGB without filters; check the CRC of every chunk."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", data, at + 8 + size)[0] == zlib.crc32(kind + body)
        parts[kind] = body
        at += 12 + size
    width, height, *rest = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    assert (list(parts), rest) == ([b"IHDR", b"IDAT", b"IEND"], [8, 2, 0, 0, 0])
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def at(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], x: int, y: int) -> tuple[int, ...]:
    return tuple(pixels[y, x].tolist())


@pytest.mark.parametrize("last", [0, 1, MOST_STEPS - 1, MOST_STEPS, 10 * MOST_STEPS, 29_000_000])
def test_the_picture_has_all_records_in_a_bounded_number_of_steps(last: int) -> None:
    line = {0: 3, last * MINUTE: 4}
    low, width, sums = steps(Panel("t", MINUTE, {"a": line, "b": {}}))
    assert (low, width % MINUTE) == (0, 0)
    assert sum(sums["a"]) == sum(line.values())
    assert sum(sums["b"]) == 0
    assert len(sums["a"]) == len(sums["b"]) <= MOST_STEPS
    assert width * len(sums["a"]) > last * MINUTE
    assert decoded(chart([Panel("t", MINUTE, {"a": line})])).shape[0] == 240


def test_the_gap_is_shaded_where_the_lines_differ_and_nowhere_else() -> None:
    source = {0: 10, MINUTE: 10, 2 * MINUTE: 10, 3 * MINUTE: 10}
    target = {**source, 2 * MINUTE: 5}
    pixels = decoded(chart([Panel("t", MINUTE, {"a": source, "b": target}, shaded=True)]))
    base = step_chart._TOP + step_chart._HEIGHT
    left, step = step_chart._LEFT, step_chart._WIDTH // 4
    inside = base - 3 * step_chart._HEIGHT // 4
    colours = [at(pixels, left + step * n + step // 2, inside) for n in range(4)]
    assert colours == [(255, 255, 255), (255, 255, 255), RED, (255, 255, 255)]
    assert at(pixels, left + 2 * step + step // 2, base - 20) == (255, 255, 255)
    line = pixels[base - step_chart._HEIGHT // 2 - 1, left + 2 * step + 3 : left + 3 * step - 3]
    shown = {tuple(pixel) for pixel in line.tolist()}
    assert shown == {AMBER, RED}, "the second line is dashed"
    top = pixels[base - step_chart._HEIGHT - 1, left : left + step]
    assert {tuple(pixel) for pixel in top.tolist()} == {BLUE, AMBER}


def test_a_step_of_latencies_has_the_largest_of_its_buckets_and_none_without_one() -> None:
    line = {0: 5, MINUTE: 7, 2 * MINUTE: 6, (2 * MOST_STEPS - 1) * MINUTE: 9}
    _, width, numbers = steps(Panel("t", MINUTE, {"a": line, "b": {}}, largest=True))
    assert width == 2 * MINUTE
    assert numbers["a"] == [7, 6, *[None] * (MOST_STEPS - 3), 9]
    assert numbers["b"] == [None] * MOST_STEPS


def test_a_time_without_a_bucket_has_no_line_and_the_limit_has_one_across() -> None:
    line = {0: 10, 3 * MINUTE: 10}
    panel = Panel("t", MINUTE, {"a": line, "b": line, "c": line}, largest=True, limit=("limit", 20))
    pixels = decoded(chart([panel]))
    base = step_chart._TOP + step_chart._HEIGHT
    left, step = step_chart._LEFT, step_chart._WIDTH // 4

    def colours(y: int, n: int) -> set[tuple[int, ...]]:
        part = pixels[y, left + n * step + 3 : left + (n + 1) * step - 3]
        return {tuple(pixel) for pixel in part.tolist()}

    half = base - step_chart._HEIGHT // 2
    assert colours(half - 1, 0) == colours(half - 1, 3) == {GREEN}
    assert colours(half - 2, 0) == {BLUE, AMBER}, "the third line is thin"
    for n in (1, 2):
        for y in range(base - step_chart._HEIGHT + 1, base):
            assert colours(y, n) == {(255, 255, 255)}
    for n in range(4):
        assert colours(base - step_chart._HEIGHT - 1, n) == {LIMIT}
    assert decoded(chart([Panel("t", MINUTE, {"a": {}}, largest=True)])).shape[0] == 240


def test_text_is_drawn_and_cut_off_at_the_border() -> None:
    canvas = Canvas(40, 20)
    canvas.text(0, 0, "I\u4e2d" + "x" * 50, (0, 0, 0), scale=1)
    dark = (canvas.pixels[:, :, 0] == 0).astype(int)
    assert dark[:7, :5].tolist() == [[0, 1, 1, 1, 0], *[[0, 0, 1, 0, 0]] * 5, [0, 1, 1, 1, 0]]
    assert dark[:7, 6:11].tolist() == [[1] * 5, *[[1, 0, 0, 0, 1]] * 5, [1] * 5]
    assert not dark[7:].any()
    canvas.text(-3, 18, "x", (0, 0, 0))
    assert text_width("abc", 1) == 18


def test_every_character_of_a_topic_name_and_a_number_has_its_own_glyph() -> None:
    known = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-,:()/ "
    seen = {}
    for c in known:
        canvas = Canvas(5, 7)
        canvas.text(0, 0, c, (0, 0, 0), scale=1)
        seen[canvas.pixels.tobytes()] = c
    assert len(seen) == len(known)
