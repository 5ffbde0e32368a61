"""Values of inter.broker.protocol.version."""

import pytest

from kbroker.common.protocol_version import VERSIONS, is_extended, problem, resolve


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("3.9-IV0", "3.9-IV0"),
        ("3.9", "3.9-IV0"),
        ("3.9.1", "3.9-IV0"),
        ("3.7", "3.7-IV4"),
        ("3.7-IV1", "3.7-IV1"),
        ("3.4", "3.4-IV0"),
        ("3.3", None),
        ("2.8-IV1", None),
        ("4.0", None),
        ("3.9-IV1", None),
        ("3", None),
        ("3.9.x", None),
        ("", None),
    ],
)
def test_a_release_stands_for_its_last_version(text, version):
    assert resolve(text) == version
    assert (problem(text) is None) is (version is not None)


def test_only_the_newest_version_has_extensions():
    assert [version for version in VERSIONS if is_extended(version)] == ["3.9-IV0"]
    assert is_extended("3.9")
    assert not is_extended("3.8")
