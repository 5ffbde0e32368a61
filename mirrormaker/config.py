"""The mirror's configuration file: connect-mirror-maker.properties, read as a whole.

``clusters = east, west`` names the clusters. ``east.bootstrap.servers`` and other client settings configure the
connection to each. ``east->west.enabled = true`` enables a direction; ``east->west.topics`` and the other link
settings configure it. A link setting without a prefix applies to all directions, ``east.consumer.X`` and
``west.producer.X`` to those that read from or write to that cluster. ``west.zookeeper.connect`` lets several processes
share the directions into west (`mirrormaker.workers`).

One `ConfigError` lists all problems. A name without effect is a warning. For an unknown one it suggests the nearest
known one. Others are known names with a prefix that is not read, or of a client that kmirror is not.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kclient.config import INT_MAX, CommonConfig, dotted, every_setting, read_properties, snake
from kclient.errors import ConfigError
from mirrormaker.settings import (
    DEPRECATED,
    NOT_APPLICABLE,
    LinkSettings,
    contradictions,
    link_settings,
    number,
    refused_with_renumber,
)
from mirrormaker.workers import WorkerSettings

_ARROW = "->"

ZOOKEEPER = "zookeeper.connect"
SESSION_TIMEOUT = "zookeeper.session.timeout.ms"
DEFAULT_SESSION_TIMEOUT = "18000"
"""Settings of a target's ZooKeeper, as a broker's, with the alias before them."""


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """One direction: records of cluster *source* go to cluster *target* (both aliases)."""

    source: str
    target: str
    source_client: CommonConfig
    target_client: CommonConfig
    settings: LinkSettings
    opposite_emits_heartbeats: bool = False
    """Whether the opposite direction is enabled, too, and emits heartbeats."""
    workers: WorkerSettings | None = None
    """Where the workers of this direction meet; None: one process copies everything."""

    @property
    def name(self) -> str:
        """The direction as in the file: ``east->west``."""
        return f"{self.source}->{self.target}"


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    """The flows of one mirror process; *warnings* are for the operator."""

    flows: tuple[FlowConfig, ...]
    warnings: tuple[str, ...] = ()
    """Names without effect, and deprecated ones."""
    mistakes: tuple[str, ...] = ()
    """Those of the warnings that are about names which the operator may have meant otherwise."""

    @classmethod
    def load(cls, path: Path) -> MirrorConfig:
        """Read a file; `ConfigError` lists all problems in it."""
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as problem:
            reason = getattr(problem, "strerror", None) or "it is not a text file"
            raise ConfigError(f"{path} cannot be read: {reason}") from None
        return cls.of(read_properties(text))

    @classmethod
    def of(cls, values: Mapping[str, str]) -> MirrorConfig:
        """Make the configuration from names and values."""
        reading = _Parser(values)
        flows = reading.flows()
        if reading.problems:
            listed = "".join(f"\n  {problem}" for problem in reading.problems)
            raise ConfigError(f"the configuration is wrong:{listed}")
        return cls(tuple(flows), tuple(reading.warnings), tuple(reading.mistakes))


class _Parser:
    """Parses one file and collects problems and warnings."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.mistakes: list[str] = []
        self.aliases = _listed(values.get("clusters", ""))

    def flows(self) -> list[FlowConfig]:
        if len(self.aliases) < 2:
            self.problems.append(
                "clusters: name at least two, as in: clusters = east, west"
                if "clusters" in self.values
                else "clusters: is missing, name the clusters as in: clusters = east, west"
            )
        for alias in self.aliases:
            if self.aliases.count(alias) > 1 or _ARROW in alias or "." in alias:
                self.problems.append(f"clusters: {alias!r} is a duplicate or contains . or ->")
        if not self.problems:  # without two clusters no name has an effect
            self._check_names()
        settings = {pair: self._settings(*pair) for pair in self._pairs()}
        enabled = [pair for pair, found in settings.items() if found.enabled]
        if not enabled and not self.problems:
            example = f"{self.aliases[0]}->{self.aliases[1]}"
            self.problems.append(
                f"no direction is enabled; enable one with: {example}.enabled = true"
            )
        clients = {alias: self._client(alias) for alias in dict.fromkeys(sum(enabled, ()))}
        workers = {pair: self._workers(pair, settings[pair]) for pair in enabled}
        self._check_zookeepers({target for _, target in enabled})
        return [
            FlowConfig(
                source,
                target,
                clients[source],
                clients[target],
                settings[source, target],
                (target, source) in enabled and settings[target, source].emit_heartbeats,
                workers[source, target],
            )
            for source, target in enabled
        ]

    def _pairs(self) -> list[tuple[str, str]]:
        return [(a, b) for a in self.aliases for b in self.aliases if a != b]

    def _settings(self, source: str, target: str) -> LinkSettings:
        """Return the settings of one direction; the most specific name wins."""
        found: dict[str, Any] = {}
        flow = f"{source}{_ARROW}{target}"
        for name, setting in link_settings().items():
            names = _written_as(source, target, name)
            written = next((n for n in names if n in self.values), None)
            if written is None:
                continue
            try:
                found[setting.name] = setting.metadata["read"](self.values[written].strip())
            except ValueError as problem:
                text = f"{written}: {problem}"
                if text not in self.problems:
                    self.problems.append(text)
        settings = LinkSettings(**found)
        self.problems += [
            f"{flow}.{name}: cannot be with target.offsets=renumber: {reason}"
            for name, reason in refused_with_renumber(settings)
        ]
        self.problems += [f"{flow}.{text}" for text in contradictions(settings)]
        return settings

    def _workers(self, pair: tuple[str, str], settings: LinkSettings) -> WorkerSettings | None:
        """Return where the workers of a direction meet, if its target's ZooKeeper is named."""
        name, timeout_name = f"{pair[1]}.{ZOOKEEPER}", f"{pair[1]}.{SESSION_TIMEOUT}"
        if name not in self.values:
            return None
        from mirrormaker.worker_registry import check_connect

        connect, timeout = (
            self.values[name],
            self.values.get(timeout_name, DEFAULT_SESSION_TIMEOUT),
        )
        found = WorkerSettings(connect, 0.0)
        if settings.renumbers:
            self.problems.append(
                f"{name}: cannot be with target.offsets=renumber: one process copies such a direction"
            )
        try:
            check_connect(connect)
        except ValueError as problem:
            self.problems.append(f"{name}: {problem}")
        try:
            found = WorkerSettings(connect, number(1000, INT_MAX)(timeout.strip()) / 1000)
        except ValueError as problem:
            self.problems.append(f"{timeout_name}: {problem}")
        if not settings.refresh_topics:
            self.problems.append(
                f"{name}: needs refresh.topics.enabled=true; workers find by it what another one created"
            )
        return found

    def _check_zookeepers(self, targets: set[str]) -> None:
        """Warn about settings of ZooKeeper that no direction uses."""
        for alias in self.aliases:
            connect, timeout = f"{alias}.{ZOOKEEPER}", f"{alias}.{SESSION_TIMEOUT}"
            unused: tuple[str, ...]
            if alias not in targets:
                unused, why = (connect, timeout), f"no direction into {alias} is enabled"
            elif connect not in self.values:
                unused, why = (timeout,), f"{connect} is not set"
            else:
                continue
            self.warnings += [
                f"{name}: has no effect, {why}" for name in unused if name in self.values
            ]

    def _client(self, alias: str) -> CommonConfig:
        """Return the client settings of the cluster *alias*."""
        given: dict[str, str] = {"client.id": "kmirror"}
        for name in _CLIENT:
            for written in _written_for(alias, name):
                if written in self.values:
                    given[name] = self.values[written]
        if "bootstrap.servers" not in given:
            self.problems.append(f"{alias}.bootstrap.servers: is missing")
            return CommonConfig()
        try:
            return CommonConfig.load(given)
        except ConfigError as problem:
            self.problems.append(f"{alias}: {problem.message}")
            return CommonConfig()

    # --- names

    def _check_names(self) -> None:
        """Warn about names without effect."""
        effective = self._effective()
        for written in self.values:
            prefix, name = self._split(written)
            if written in effective:
                if name in DEPRECATED.values():
                    now = next(new for new, old in DEPRECATED.items() if old == name)
                    self.warnings.append(f"{written}: is the deprecated name of {prefix}{now}")
            elif name in NOT_APPLICABLE:
                self.warnings.append(f"{written}: accepted, has no effect here")
            else:
                self.mistakes.append(self._mistake(prefix, name, effective))
        self.warnings += self.mistakes

    def _effective(self) -> set[str]:
        """Return all names that have an effect with these clusters."""
        links = {
            name for pair in self._pairs() for each in link_settings() for name in _written_as(*pair, each)
        }  # fmt: skip
        clients = {
            name for alias in self.aliases for each in _CLIENT for name in _written_for(alias, each)
        }
        zookeepers = {f"{alias}.{each}" for alias in self.aliases for each in _ZOOKEEPER}
        return {"clusters", *links, *clients, *zookeepers}

    def _split(self, written: str) -> tuple[str, str]:
        """Return the prefix of a name, with its role, and the rest."""
        flows = [f"{a}{_ARROW}{b}." for a, b in self._pairs()]
        prefixes = [*flows, *(f"{alias}." for alias in self.aliases)]
        name = written.removeprefix(
            next((each for each in prefixes if written.startswith(each)), "")
        )
        for role in _ROLES:
            name = name.removeprefix(role)
        return written[: len(written) - len(name)], name

    def _mistake(self, prefix: str, name: str, effective: set[str]) -> str:
        """Return the warning about a name without effect."""
        written = prefix + name
        if _ARROW in written and not prefix:
            return f"{written}: unknown, {written.partition('.')[0]} is not a pair of the named clusters"
        if name in _ZOOKEEPER:
            return f"{written}: has no effect, its prefix is the alias of a target, as in {self.aliases[-1]}.{name}"
        if name in link_settings() or name in _CLIENT:
            near = name
            if name not in effective or prefix not in ("", *_ROLES):
                near = min(
                    (each for each in effective if each.endswith(name)),
                    key=lambda each: (-difflib.SequenceMatcher(None, each, written).ratio(), each),
                )
            return f"{written}: has no effect with this prefix, did you mean {near}?"
        if prefix and snake(name) in every_setting():
            return f"{written}: has no effect, kmirror copies whole batches and has no such setting"
        known = [*link_settings(), "clusters", *map(dotted, every_setting())]
        known += _ZOOKEEPER
        near_names = difflib.get_close_matches(name, known, n=1)
        return f"{written}: unknown setting" + (
            f", did you mean {prefix}{near_names[0]}?" if near_names else ""
        )


_ROLES = ("consumer.", "producer.", "admin.")
_ZOOKEEPER = (ZOOKEEPER, SESSION_TIMEOUT)
_CLIENT = frozenset(dotted(each.name) for each in dataclasses.fields(CommonConfig))
"""Settings of the connection to a cluster."""


def _written_as(source: str, target: str, name: str) -> list[str]:
    """Return the names that the link setting *name* may have for one direction, the most specific first."""
    flow = f"{source}{_ARROW}{target}"
    names = [f"{flow}.{name}"]
    side = link_settings()[name].metadata["side"]
    if side:
        cluster = source if side == "consumer" else target
        names += [f"{flow}.{side}.{name}", f"{cluster}.{side}.{name}"]
    if name != "enabled":
        names.append(name)
    if name in DEPRECATED:
        names += [f"{flow}.{DEPRECATED[name]}", DEPRECATED[name]]
    return names


def _written_for(alias: str, name: str) -> tuple[str, str]:
    """Return the names that the client setting *name* may have for one cluster, the most specific last."""
    return f"{alias}.{name}", f"{alias}.admin.{name}"


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
