"""How the answers of the two clusters may differ: the comparison, and the differences that are meant."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

KEYS = (
    *("name", "topic", "topic_name", "topic_id", "transactional_id", "group_id", "key"),
    *("resource_type", "resource_name", "partition_index", "partition_id", "partition", "index"),
    *("producer_id", "member_id", "node_id"),
)
"""Fields that name an element of an array: the order of arrays is not compared."""
ABSENT = "absent"


class Difference(NamedTuple):
    """A place of a response that differs; *path* is API.field.field[].field."""

    path: str
    ours: Any
    theirs: Any


def differences(path: str, ours: Any, theirs: Any) -> Iterator[Difference]:
    """Yield the places at which two answers differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if theirs.get("error_code") == "UNKNOWN_SERVER_ERROR":
            return  # an exception in Kafka
        for name in ours.keys() | theirs.keys():
            yield from differences(
                f"{path}.{name}", ours.get(name, ABSENT), theirs.get(name, ABSENT)
            )
    elif isinstance(ours, list) and isinstance(theirs, list):
        named_ours, named_theirs = _named(ours), _named(theirs)
        for name in {**named_ours, **named_theirs}:
            yield from differences(
                f"{path}[]", named_ours.get(name, ABSENT), named_theirs.get(name, ABSENT)
            )
    elif ours != theirs:
        yield Difference(path, ours, theirs)


def _named(elements: list[Any]) -> dict[tuple[str, int], Any]:
    """Return the elements by what names them, and how often that came before."""
    found: dict[tuple[str, int], Any] = {}
    for element in elements:
        name = element
        if isinstance(element, dict):
            name = [element[key] for key in KEYS if not isinstance(element.get(key, []), list)]
            if element.get("name") and "topic_id" in element:
                name = [element["name"]]
        text, count = json.dumps(name, default=str), 0
        while (text, count) in found:
            count += 1
        found[text, count] = element
    return found


class Known(NamedTuple):
    """Differences that are meant: the pattern of their path (without ``[]``), which values, and why."""

    path: str
    holds: Callable[[Any, Any], bool]
    why: str

    def explains(self, found: Difference) -> bool:
        """Return whether *found* is one of them."""
        is_here = fnmatchcase(found.path.replace("[]", ""), self.path)
        return is_here and self.holds(found.ours, found.theirs)


NO_TOPIC = "UNKNOWN_TOPIC_OR_PARTITION"
WRONG_VALUE = {"INVALID_CONFIG", "INVALID_REQUEST"}
WRONG_NUMBER = {"INVALID_PARTITIONS", "INVALID_REPLICATION_FACTOR", "INVALID_REPLICA_ASSIGNMENT"}
DEFAULT_CONFIG = 5
"""The source of a default among the synonyms of a setting (KIP-226)."""
GROUP_OF_TRANSACTIONS = "group-of-transactions"
"""All offsets of transactions are committed for it."""


def _error(element: Any) -> object:
    """Return the error of an element of a response; None if it is absent."""
    return element.get("error_code") if isinstance(element, dict) else None


KNOWN = (
    Known(
        "*ALTER_CONFIGS.responses.error_code",
        lambda ours, theirs: ours == NO_TOPIC and theirs in WRONG_VALUE,
        "a topic that does not exist comes before a wrong value",
    ),
    Known(
        "*ALTER_CONFIGS.responses.error_code",
        lambda ours, theirs: (ours, theirs) == ("INVALID_CONFIG", "INVALID_REQUEST"),
        "a wrong value is INVALID_CONFIG, of a broker as of a topic",
    ),
    Known(
        "CREATE_TOPICS.topics.error_code",
        lambda ours, theirs: ours == "INVALID_CONFIG" and theirs in WRONG_NUMBER,
        "a wrong value comes before a wrong number",
    ),
    Known(
        "DELETE_TOPICS.responses",
        lambda ours, theirs: (
            {"UNKNOWN_TOPIC_ID", NO_TOPIC} & {_error(ours), _error(theirs)} != set()
        ),
        "Kafka knows the name of an id for a moment after the deletion",
    ),
    Known(
        "DELETE_TOPICS.responses.*",
        lambda ours, theirs: "UNKNOWN_TOPIC_ID" in (ours, theirs) or None in (ours, theirs),
        "a topic has its id in the answer, and none after its deletion",
    ),
    Known(
        "*.configs",
        lambda ours, theirs: theirs == ABSENT and ours["name"].startswith("kbroker."),
        "kbroker's own settings",
    ),
    Known(
        "DESCRIBE_CONFIGS.results.configs.synonyms",
        lambda ours, theirs: theirs == ABSENT and ours["source"] == DEFAULT_CONFIG,
        "each setting of a topic has its default as the last synonym",
    ),
    Known(
        "*.error_code",
        lambda ours, theirs: (ours, theirs) == (NO_TOPIC, "INVALID_TOPIC_EXCEPTION"),
        "a topic with a wrong name does not exist",
    ),
    Known(
        "LIST_GROUPS.groups",
        lambda ours, theirs: ours == ABSENT and theirs["group_id"] == GROUP_OF_TRANSACTIONS,
        "a commit that is refused makes no group",
    ),
    Known(
        "LIST_OFFSETS.topics.partitions.*",
        lambda ours, theirs: -1 in (ours, theirs),
        "records below the start of the log are not found, and those after it are (Kafka looks in one segment)",
    ),
    Known(
        "DESCRIBE_TRANSACTIONS.transaction_states.transaction_start_time_ms",
        lambda ours, theirs: (ours, theirs) == (-1, "now"),
        "an ended transaction has no start time",
    ),
    Known(
        "DESCRIBE_PRODUCERS.topics.partitions.active_producers.last_timestamp",
        lambda ours, _: ours == "now",
        "the time of a producer's last batch is the broker's, not the record's",
    ),
)
