"""Lines are read by a template, or refused with what did not fit."""

from __future__ import annotations

import click
import pytest

from kclient.cli.line_template import Line, LineTemplate


@pytest.mark.parametrize(
    ("template", "line", "found"),
    [
        (r"%k\t%v\n", b"k\tv", Line(b"k", b"v")),
        (r"%k\t%v", b"k\tv\tw", Line(b"k", b"v\tw")),
        ("%v", b"all of it", Line(None, b"all of it")),
        ("%p:%T:%k=%s", b"3:1700:k=v", Line(b"k", b"v", 3, 1700)),
        ("<%k> %v.", b"<k> v.", Line(b"k", b"v")),
        ("%k 100%% %v", b"k 100% v", Line(b"k", b"v")),
        (r"%k\x00%v", b"\x00v", Line(b"", b"v")),
    ],
)
def test_a_line_is_read_by_its_template(template: str, line: bytes, found: Line) -> None:
    assert LineTemplate(template)(line) == found


@pytest.mark.parametrize(
    ("template", "line"), [(r"%k\t%v", b"no tab"), ("%p %v", b"x v"), ("<%k> %v", b"k> v")]
)
def test_a_line_that_does_not_fit_is_refused(template: str, line: bytes) -> None:
    with pytest.raises(ValueError, match=r"does not match|not a number"):
        LineTemplate(template)(line)


@pytest.mark.parametrize("template", ["%k%v", "%q %v"])
def test_a_template_that_cannot_be_read_by_is_refused(template: str) -> None:
    with pytest.raises(click.BadParameter):
        LineTemplate(template)
