"""A small canvas of pixels, and its PNG: rectangles, lines along the axes, and text in a font of 5 x 7 pixels.

The step charts of kaudit need no more, and kaudit needs no plotting library for them. The same calls give the same
pixels; the bytes of the file also depend on the version of zlib. Pure.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

Colour = tuple[int, int, int]

_COLUMNS, _ROWS, _ADVANCE = 5, 7, 6
_DASH = 5

_GLYPHS = """\
0123456789
.###. ..#.. .###. .###. ...#. ##### ..##. ##### .###. .###.
#...# .##.. #...# #...# ..##. #.... .#... ....# #...# #...#
#..## ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ...#. ..##. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# ..#.. #...# ...#.
.###. .###. ##### .###. ...#. .###. .###. ..#.. .###. .##..
ABCDEFGHIJ
.###. ####. .###. ####. ##### ##### .###. #...# .###. ..###
#...# #...# #...# #...# #.... #.... #...# #...# ..#.. ...#.
#...# #...# #.... #...# #.... #.... #.... #...# ..#.. ...#.
##### ####. #.... #...# ####. ####. #.### ##### ..#.. ...#.
#...# #...# #.... #...# #.... #.... #...# #...# ..#.. ...#.
#...# #...# #...# #...# #.... #.... #...# #...# ..#.. #..#.
#...# ####. .###. ####. ##### #.... .###. #...# .###. .##..
KLMNOPQRST
#...# #.... #...# #...# .###. ####. .###. ####. .#### #####
#..#. #.... ##.## ##..# #...# #...# #...# #...# #.... ..#..
#.#.. #.... #.#.# #.#.# #...# #...# #...# #...# #.... ..#..
##... #.... #.#.# #..## #...# ####. #...# ####. .###. ..#..
#.#.. #.... #...# #...# #...# #.... #.#.# #.#.. ....# ..#..
#..#. #.... #...# #...# #...# #.... #..#. #..#. ....# ..#..
#...# ##### #...# #...# .###. #.... .##.# #...# ####. ..#..
UVWXYZ.,:-
#...# #...# #...# #...# #...# ##### ..... ..... ..... .....
#...# #...# #...# #...# #...# ....# ..... ..... ..#.. .....
#...# #...# #...# .#.#. .#.#. ...#. ..... ..... ..#.. .....
#...# #...# #.#.# ..#.. ..#.. ..#.. ..... ..... ..... .###.
#...# #...# #.#.# .#.#. ..#.. .#... ..... .##.. ..#.. .....
#...# .#.#. ##.## #...# ..#.. #.... .##.. ..#.. ..#.. .....
.###. ..#.. #...# #...# ..#.. ##### .##.. .#... ..... .....
abcdefghij
..... #.... ..... ....# ..... ..##. ..... #.... ..#.. ...#.
..... #.... ..... ....# ..... .#..# ..... #.... ..... .....
.###. #.##. .###. .##.# .###. .#... .#### #.##. .##.. ..##.
....# ##..# #.... #..## #...# ###.. #...# ##..# ..#.. ...#.
.#### #...# #.... #...# ##### .#... .#### #...# ..#.. ...#.
#...# #...# #...# #...# #.... .#... ....# #...# ..#.. #..#.
.#### ####. .###. .#### .###. .#... .###. #...# .###. .##..
klmnopqrst
#.... .##.. ..... ..... ..... ..... ..... ..... ..... .#...
#.... ..#.. ..... ..... ..... ..... ..... ..... ..... .#...
#..#. ..#.. ##.#. #.##. .###. ####. .#### #.##. .#### ###..
#.#.. ..#.. #.#.# ##..# #...# #...# #...# ##..# #.... .#...
##... ..#.. #.#.# #...# #...# ####. .#### #.... .###. .#...
#.#.. ..#.. #...# #...# #...# #.... ....# #.... ....# .#..#
#..#. .###. #...# #...# .###. #.... ....# #.... ####. ..##.
uvwxyz_()/
..... ..... ..... ..... ..... ..... ..... ...#. .#... ....#
..... ..... ..... ..... ..... ..... ..... ..#.. ..#.. ....#
#...# #...# #...# #...# #...# ##### ..... .#... ...#. ...#.
#...# #...# #...# .#.#. #...# ...#. ..... .#... ...#. ..#..
#...# #...# #.#.# ..#.. .#### ..#.. ..... .#... ...#. .#...
#..## .#.#. #.#.# .#.#. ....# .#... ..... ..#.. ..#.. #....
.##.# ..#.. .#.#. #...# .###. ##### ##### ...#. .#... #....
"""


def _font() -> dict[str, np.ndarray[tuple[int, int], np.dtype[np.bool_]]]:
    lines = _GLYPHS.splitlines()
    font = {}
    for top in range(0, len(lines), _ROWS + 1):
        rows = [line.split() for line in lines[top + 1 : top + 1 + _ROWS]]
        for n, c in enumerate(lines[top]):
            font[c] = np.array([[pixel == "#" for pixel in row[n]] for row in rows])
    font[" "] = np.zeros((_ROWS, _COLUMNS), np.bool_)
    return font


_FONT = _font()
_UNKNOWN = np.ones((_ROWS, _COLUMNS), np.bool_)
_UNKNOWN[1:-1, 1:-1] = False


class Canvas:
    """White pixels to draw on; what lies outside is cut off."""

    def __init__(self, width: int, height: int) -> None:
        self.pixels = np.full((height, width, 3), 255, np.uint8)

    def rectangle(
        self,
        left: int,
        top: int,
        right: int,
        bottom: int,
        colour: Colour,
        *,
        dashed: bool = False,
    ) -> None:
        """Fill the pixels [left, right) x [top, bottom); with *dashed* every second part along the axes."""
        area = self.pixels[max(0, top) : max(0, bottom), max(0, left) : max(0, right)]
        if not dashed:
            area[:] = colour
            return
        along = np.add.outer(np.arange(area.shape[0]) + top, np.arange(area.shape[1]) + left)
        area[along // _DASH % 2 == 0] = colour

    def text(self, left: int, top: int, text: str, colour: Colour, scale: int = 2) -> None:
        """Draw *text*; a character that the font lacks is a box."""
        for n, c in enumerate(text):
            glyph = np.kron(_FONT.get(c, _UNKNOWN), np.ones((scale, scale), np.bool_))
            at = left + n * _ADVANCE * scale
            if at < 0:
                continue
            area = self.pixels[top : top + glyph.shape[0], at : at + glyph.shape[1]]
            area[glyph[: area.shape[0], : area.shape[1]]] = colour

    def png(self) -> bytes:
        """Return the picture as a PNG file."""
        height, width, _ = self.pixels.shape
        rows = b"".join(b"\0" + row.tobytes() for row in self.pixels)
        parts = (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
            (b"IDAT", zlib.compress(rows)),
            (b"IEND", b""),
        )
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def text_width(text: str, scale: int = 2) -> int:
    """Return the pixels that *text* takes."""
    return len(text) * _ADVANCE * scale


def _chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
