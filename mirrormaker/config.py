"""The mirror's configuration file: connect-mirror-maker.properties, read as a whole.

``clusters = east, west`` names the clusters. ``east.bootstrap.servers`` and other client settings configure the
connection to each. ``east->west.enabled = true`` enables a direction; ``east->west.topics`` and the other link
settings configure it. A link setting without a prefix applies to all directions, ``east.consumer.X`` and
``west.producer.X`` to those that read from or write to that cluster. ``west.zookeeper.connect`` lets several processes
share the directions into west (`mirrormaker.workers`).

One `ConfigError` lists all problems. An unknown name is a warning that suggests the nearest known one.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kclient.config import CommonConfig, every_setting, read_properties
from kclient.errors import ConfigError
from mirrormaker.settings import (
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
        return cls(tuple(flows), tuple(reading.warnings))


class _Parser:
    """Parses one file and collects problems and warnings."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        self.problems: list[str] = []
        self.warnings: list[str] = []
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
            side = setting.metadata["side"]
            names = [f"{flow}.{name}"]
            if side:
                cluster = source if side == "consumer" else target
                names += [f"{flow}.{side}.{name}", f"{cluster}.{side}.{name}"]
            if name != "enabled":
                names.append(name)
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
            self.values[name].strip(),
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
            found = WorkerSettings(connect, number(1000)(timeout.strip()) / 1000)
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
        known = {f.name.replace("_", ".") for f in dataclasses.fields(CommonConfig)}
        given: dict[str, str] = {"client.id": "kmirror"}
        for name in known:
            for prefix in (f"{alias}.", f"{alias}.admin."):
                if f"{prefix}{name}" in self.values:
                    given[name] = self.values[f"{prefix}{name}"]
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
        """Warn about unknown names and about settings without effect."""
        for written in self.values:
            name = written
            for prefix in self._prefixes():
                if written.startswith(prefix):
                    name = written[len(prefix) :]
                    break
            for role in ("consumer.", "producer.", "admin."):
                name = name.removeprefix(role)
            if name in NOT_APPLICABLE:
                self.warnings.append(f"{written}: accepted, has no effect here")
            elif not self._is_known(name, written):
                self.warnings.append(self._unknown(name, written))

    def _prefixes(self) -> list[str]:
        flows = [f"{a}{_ARROW}{b}." for a, b in self._pairs()]
        return flows + [f"{alias}." for alias in self.aliases]

    def _is_known(self, name: str, written: str) -> bool:
        if written == "clusters" or name in link_settings():
            return True
        if name in (ZOOKEEPER, SESSION_TIMEOUT):
            return name != written and _ARROW not in written
        return name != written and name.replace(".", "_") in every_setting()

    def _unknown(self, name: str, written: str) -> str:
        if _ARROW in written and name == written:
            return f"{written}: unknown, {written.partition('.')[0]} is not a pair of the named clusters"
        known = [*link_settings(), "clusters", *(s.replace("_", ".") for s in every_setting())]
        known += [ZOOKEEPER, SESSION_TIMEOUT]
        near = difflib.get_close_matches(name, known, n=1)
        prefix = written[: len(written) - len(name)]
        return f"{written}: unknown setting" + (
            f", did you mean {prefix}{near[0]}?" if near else ""
        )


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
