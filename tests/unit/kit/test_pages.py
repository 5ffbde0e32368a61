"""The reading of documentation (tests/kit/pages.py): what a page asks for, and what counts as the same output."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.pages import PageError, matches, not_executed, reading, steps

PAGE = """# Title

Not executed:

    rm -rf /

## First

`a/b.txt`:

```json
{"a": 1}
```

```console
$ cat <<END
> two
> END
two
$ true
```

```sh
echo one  # a comment
# another

printf 'a
b'
```

```text
...
b
```

## Second

```python
print(1)
```
"""


def test_a_page_is_a_list_of_what_its_reader_does() -> None:
    assert [(s.line, s.kind, s.text.strip(), s.shown, s.name) for s in steps(PAGE)] == [
        (11, "file", '{"a": 1}', None, "a/b.txt"),
        (16, "command", "cat <<END\ntwo\nEND", ("two",), ""),
        (20, "command", "true", None, ""),
        (24, "command", "echo one  # a comment", None, ""),
        (27, "command", "printf 'a\nb'", ("...", "b"), ""),
        (38, "program", "print(1)", None, ""),
    ]
    assert [step.section for step in steps(PAGE, ["Second"])] == ["Second"]


def test_what_is_not_executed_is_found_by_its_section() -> None:
    page = PAGE.replace("rm -rf /", "kclient topic list").replace(
        "printf", "    kmirror run FILE\nprintf"
    )
    assert not_executed(PAGE) == set()
    assert not_executed(page) == {"Title"}
    assert not_executed(page, ["Second"]) == {"Title", "First"}
    assert steps(page)[:4] == steps(PAGE)[:4]


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("```yaml\na: 1\n```\n", "line 1: a block of yaml"),
        ("```text\na\n```\n", "line 1: a block of text"),
        ("```sh\ntrue\n", "line 1: the block has no end"),
        ("```console\nwhat it prints\n```\n", "line 2: the block begins without"),
        ("```sh\necho 'open\n```\n", "no whole command"),
    ],
)
def test_a_block_without_a_meaning_is_an_error_of_the_page(page: str, problem: str) -> None:
    with pytest.raises(PageError, match=problem):
        steps(page)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["a (b)", ""], "a (b)\n\n", True),
        (["a"], "a\nb\n", False),
        (["a", "..."], "a\nb\nc\n", True),
        (["a", "...", "c"], "a\nc", True),
        (["a", "...", "c"], "a\nd", False),
        (["a ... c"], "a b b c", True),
        (["a ... c"], "a\nc", False),
        (["running, pid 4711"], "running, pid 12", True),
        (["running, pid 4711"], "running, pid x", False),
        (["after 0.9 s"], "after 12 s", True),
        (["10 s", "3 records"], "11 s\n4 records\n", False),
        (["cut 2026-11-25T23:35:39Z"], "cut 2031-01-01T00:00:00Z", True),
    ],
)
def test_output_is_compared_but_for_what_differs_from_run_to_run(
    shown: list[str], printed: str, same: bool
) -> None:
    assert matches(shown, printed) is same


GOOD = """
`f.txt`:

```text
hello
```

```console
$ export A=1; cat f.txt
hello
$ (exit 3)
$ echo $? $A
3 1
```

For a second line add to `f.txt`:

```text
again
```

```python
print(open("f.txt").read(), end="")
number = 6
```

```text
hello
again
```

```python
print(number * 7)
while True:
    pass
```

```text
42
^C
```
"""


@pytest.mark.parametrize(
    ("wrong", "right", "problem"),
    [
        ("", "", ""),
        (
            "hello\n$",
            "hallo\n$",
            "page.md:9: export A=1; cat f.txt\nthe page shows:\nhallo\nit pri",
        ),
        ("$ echo $? $A\n3 1\n", "", "page.md:11: (exit 3)\nexit code 3"),
        ("3 1", "3 2", "page.md:12: echo"),
        ("number =", "nombre =", "page.md:32: print(number * 7)"),
        ("number * 7", "1 / 0", 'File "page.md", line 33, in <module>'),
    ],
)
def test_a_page_is_executed_and_a_difference_has_its_line(
    wrong: str, right: str, problem: str, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(GOOD.replace(wrong, right, 1))
    (tmp_path / "reader").mkdir()
    with reading(tmp_path / "reader", Path(sys.prefix) / "bin") as reader:
        if not problem:
            assert reader.read(page) == 5
            return
        with pytest.raises(PageError) as caught:
            reader.read(page)
        assert problem in str(caught.value)
