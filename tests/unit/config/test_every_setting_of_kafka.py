"""Every setting of Kafka 3.9 is honoured, refused, or named in a warning: none is accepted in silence.

The two files of names come from the jars of Kafka 3.9.1: AbstractKafkaConfig and LogConfig.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from kbroker.config import BROKER_SETTINGS, TOPIC_SETTINGS, ConfigError, KafkaConfig, LogConfig
from kbroker.config.setting import ConfigType, Setting, attribute, show_value

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BROKER = (HERE / "kafka_3_9_broker_settings.txt").read_text().split()
TOPIC = (HERE / "kafka_3_9_topic_settings.txt").read_text().split()

GOOD = {"zookeeper.connect": "z:2181", "broker.id": "1", "log.dirs": "/nowhere"}
CHECKED = {"broker.id.generation.enable"}
"""Settings with one effect: a value is refused."""
CHECKS = ROOT / "kbroker/config/checks.py"
"""A value that is only checked is not honoured."""
RESOLVING = ROOT / "kbroker/config/kafka_config.py"
"""Here the broker's value becomes the default of the topic's: that alone does not honour the topic's setting."""

SAMPLES = {
    "inter.broker.protocol.version": "3.8",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "advertised.listeners": "PLAINTEXT://127.0.0.1:9092",
    "zookeeper.connect": "z:2181",
    "inter.broker.listener.name": "PLAINTEXT",
    "control.plane.listener.name": "PLAINTEXT",
    "log.dir": "/nowhere",
    "log.dirs": "/nowhere",
}


@cache
def attributes_read() -> dict[Path, frozenset[str]]:
    """Return the attributes that each module of the broker reads."""
    found = {}
    for path in (ROOT / "kbroker").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        found[path] = frozenset(
            node.attr if isinstance(node, ast.Attribute) else node.value
            for node in nodes
            if (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))
            or (isinstance(node, ast.Constant) and isinstance(node.value, str))  # getattr
        )
    return found


def is_read(name: str, *, outside: tuple[Path, ...]) -> bool:
    return any(
        attribute(name) in names for path, names in attributes_read().items() if path not in outside
    )


def sample(name: str, setting: Setting | None) -> str:
    """Return a value that an operator may set, other than the default where there are only two."""
    if name in SAMPLES:
        return SAMPLES[name]
    if setting is None:
        return "true" if name.endswith(".enable") else "1"
    if setting.type is ConfigType.BOOLEAN:
        return "false" if setting.default else "true"
    return show_value(setting.default) or "1"


def answer_to(name: str) -> str:
    """Return how a broker answers when *name* is set: its problems and warnings."""
    given = {**GOOD, name: sample(name, BROKER_SETTINGS.get(name))}
    try:
        return "\n".join(KafkaConfig.of(given).warnings)
    except ConfigError as error:
        return "\n".join(error.problems)


def test_the_lists_are_whole() -> None:
    assert (len(BROKER), len(set(BROKER))) == (328, 328)
    assert (len(TOPIC), len(set(TOPIC))) == (36, 36)


@pytest.mark.parametrize("name", BROKER)
def test_a_broker_setting_is_honoured_refused_or_named(name: str) -> None:
    answer = answer_to(name)
    assert "unknown setting" not in answer
    if name in answer:
        return
    setting = BROKER_SETTINGS[name]
    assert not setting.is_idle
    outside = () if name in CHECKED else (CHECKS,)
    assert is_read(name, outside=outside), f"{name} is accepted in silence, and nothing reads it"
    for topic in TOPIC_SETTINGS.values():
        if name in topic.synonyms:
            assert topic.is_idle == setting.is_idle, topic.name


@pytest.mark.parametrize("name", TOPIC)
def test_a_topic_setting_is_honoured_or_documented_as_without_effect(name: str) -> None:
    setting = TOPIC_SETTINGS[name]
    if setting.doc.startswith("Refused if true"):
        with pytest.raises(ConfigError, match=name):
            LogConfig().overridden({name: "true"})
        return
    outside = (CHECKS, RESOLVING)
    assert setting.is_idle != is_read(name, outside=outside), setting.doc


def test_no_setting_that_is_documented_as_without_effect_is_read() -> None:
    for setting in BROKER_SETTINGS.values():
        if setting.is_idle:
            assert not is_read(setting.name, outside=(CHECKS, RESOLVING)), setting.name
