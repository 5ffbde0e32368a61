"""The self-test is not repeated in an environment in which it passed."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.passed_self_tests import MOST_ENVIRONMENTS, PassedSelfTests, environment_key

AT = "2026-11-23T03:00:00Z"


def test_a_result_is_known_to_the_next_process_with_its_time(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "self-tests.json"
    assert PassedSelfTests(file).result("key") is None
    PassedSelfTests(file).remember("key", "20/20 found, 0 invented", AT)
    text = PassedSelfTests(file).result("key")
    assert text == f"20/20 found, 0 invented (on {AT}, same version and environment)"
    assert PassedSelfTests(file).result("another") is None


def test_the_oldest_environment_is_forgotten(tmp_path: Path) -> None:
    known = PassedSelfTests(tmp_path / "f")
    for number in range(MOST_ENVIRONMENTS + 1):
        known.remember(str(number), "passed", AT)
    assert known.result("0") is None
    assert known.result("1") is not None


@pytest.mark.parametrize("content", ["", "[]", '{"key": 1}', '{"key": {"result": 1}}', "\xff"])
def test_a_damaged_file_is_no_result_and_is_replaced(tmp_path: Path, content: str) -> None:
    file = tmp_path / "f"
    file.write_text(content, encoding="latin-1")
    assert PassedSelfTests(file).result("key") is None
    PassedSelfTests(file).remember("key", "passed", AT)
    assert PassedSelfTests(file).result("key") is not None


def test_a_file_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "no directory").write_text("")
    known = PassedSelfTests(tmp_path / "no directory" / "f")
    known.remember("key", "passed", AT)
    assert known.result("key") is None


def test_any_change_of_the_code_or_of_a_version_is_another_environment(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "a.py"
    file.write_text("x = 1\n")
    before = environment_key({"spark": "4"}, {}, [tmp_path])
    assert environment_key({"spark": "4"}, {}, [tmp_path]) == before
    assert environment_key({"spark": "5"}, {}, [tmp_path]) != before
    file.write_text("x = 2\n")
    changed = environment_key({"spark": "4"}, {}, [tmp_path])
    assert changed != before
    file.rename(tmp_path / "sub" / "b.py")
    assert environment_key({"spark": "4"}, {}, [tmp_path]) != changed


@pytest.mark.parametrize("name", ["pandas", "numpy", "pyarrow", "cramjam", "crc32c", "fastavro"])
def test_another_version_of_a_package_is_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Only pyarrow counted: a pandas of another version had "same version and environment"."""
    before = environment_key({}, {}, [])
    about = tmp_path / f"{name}-99.0.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n")
    assert environment_key({}, {}, []) == before
    monkeypatch.syspath_prepend(str(tmp_path))
    assert environment_key({}, {}, []) != before


def test_other_settings_of_spark_are_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = environment_key({}, {"spark.a": "1", "spark.b": "2"}, [])
    assert environment_key({}, {"spark.b": "2", "spark.a": "1"}, []) == before
    assert environment_key({}, {"spark.a": "1", "spark.b": "3"}, []) != before
    assert environment_key({"spark.a": "1", "spark.b": "2"}, {}, []) != before
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    plain = environment_key({}, {}, [])
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.ansi.enabled false\n")
    assert environment_key({}, {}, []) != plain
    monkeypatch.setenv("PYSPARK_PYTHON", "another-python")
    assert environment_key({}, {"spark.a": "1", "spark.b": "2"}, []) != before
