"""Tables of text with aligned columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """Return the lines of a table. The first *left* columns are text, and begin to the left; numbers end to the right.

    >>> text_table(("topic", "records"), [("orders", "7")], left=1)
    ['topic   records', 'orders        7']
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    return [
        "  ".join(
            f"{text:<{width}}" if n < left else f"{text:>{width}}"
            for n, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (headings, *rows)
    ]
