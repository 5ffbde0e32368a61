"""The wheel holds every file that the packages need at run time."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("kbroker", "kclient", "mirrormaker", "spark_jobs")


def test_every_data_file_of_a_package_matches_a_pattern_of_package_data() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    patterns = {
        package: patterns.replace(",", " ").split()
        for package, patterns in setup["options.package_data"].items()
    }
    left_out = []
    for path in (each for name in PACKAGES for each in (ROOT / name).rglob("*")):
        # The build adds what it compiled (.so).
        if not path.is_file() or path.suffix in (".py", ".pyc", ".so"):
            continue
        package = path.parent
        while not (package / "__init__.py").exists():
            package = package.parent
        name = ".".join(package.relative_to(ROOT).parts)
        known = [*patterns["*"], *patterns.get(name, [])]
        if str(path.relative_to(package)) not in {
            str(found.relative_to(package)) for pattern in known for found in package.glob(pattern)
        }:
            left_out.append(str(path.relative_to(ROOT)))
    assert left_out == []


def test_the_licence_is_apache_2_and_in_the_distribution() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["metadata"]["license"] == "Apache-2.0"
    assert (
        (ROOT / setup["metadata"]["license_files"])
        .read_text()
        .lstrip()
        .startswith("Apache License")
    )
