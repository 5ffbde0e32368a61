"""Contexts: which cluster `kclient` uses when no option names brokers."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from twisted.python.failure import Failure

from kclient.cli.commands import kclient
from kclient.cli.context import Settings, exit_code
from kclient.config import AdminConfig
from kclient.contexts import Context, Contexts, changing, default_file, load, text_of
from kclient.errors import (
    Address,
    AttemptFailed,
    BootstrapError,
    Cause,
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
)

EAST = Context("east", {"bootstrap.servers": "east:1"}, "/somewhere")
WEST = Context("west", {"bootstrap.servers": "west:1"}, "/somewhere")
PROD = Context("prod", {"bootstrap.servers": "prod:1", "request.timeout.ms": 5000})


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of contexts, for a user without settings."""
    for name in ("KCLIENT_BOOTSTRAP_SERVERS", "KCLIENT_CONFIG", "KCLIENT_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "config" / "kclient" / "contexts.toml"


def written(*contexts: Context, current: str | None = None) -> None:
    with changing(default_file()) as versions:
        versions.append(Contexts({c.name: c for c in contexts}, current))


def brokers_of(settings: Settings) -> str:
    return AdminConfig.load(settings.client(AdminConfig)).bootstrap_servers


def test_the_current_context_names_the_brokers(file: Path) -> None:
    before = brokers_of(Settings())
    written(EAST, PROD, current="east")
    assert brokers_of(Settings()) == "east:1"
    assert brokers_of(Settings(bootstrap="b:1")) == "b:1"
    assert brokers_of(Settings(pairs=("bootstrap.servers=x:1",))) == "x:1"
    file.unlink()
    assert brokers_of(Settings()) == before


def test_a_variable_names_the_context_or_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    written(EAST, PROD, current="east")
    monkeypatch.setenv("KCLIENT_CONTEXT", "prod")
    settings = Settings()
    values = settings.client(AdminConfig)
    assert (values["bootstrap.servers"], values["request.timeout.ms"]) == ("prod:1", 5000)
    assert settings.context == PROD
    monkeypatch.setenv("KCLIENT_BOOTSTRAP_SERVERS", "env:1")
    settings = Settings()
    assert brokers_of(settings) == "env:1"
    assert settings.context is None


def test_a_file_of_the_user_comes_before_the_current_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(EAST, current="east")
    usual = tmp_path / "kclient.conf"
    usual.write_text("bootstrap.servers=file:1\nclient.id=mine\n")
    monkeypatch.setenv("KCLIENT_CONFIG", str(usual))
    assert brokers_of(Settings()) == "file:1"
    monkeypatch.setenv("KCLIENT_CONTEXT", "east")
    values = Settings().client(AdminConfig)
    assert (values["bootstrap.servers"], values["client.id"]) == ("east:1", "mine")
    assert brokers_of(Settings(files=(str(usual),))) == "file:1"


def test_a_context_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    written(EAST, PROD, current="east")
    monkeypatch.setenv("KCLIENT_CONTEXT", "pord")
    with pytest.raises(ConfigError, match=r"KCLIENT_CONTEXT.*'pord', but: east, prod"):
        Settings().client(AdminConfig)


@pytest.mark.parametrize("text", ["current = ", "current = 1", "[context.east]", "contexts = 1"])
def test_a_damaged_file_is_named(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"contexts\.toml"):
        Settings().client(AdminConfig)


def test_names_with_dots_need_no_quotes(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text('[contexts.a]\nbootstrap.servers = "h:1"\nrequest.timeout.ms = 7\n')
    assert load(file).by_name["a"].settings == {
        "bootstrap.servers": "h:1",
        "request.timeout.ms": 7,
    }


def test_what_is_written_is_read_back(file: Path) -> None:
    odd = Context('a "b" \\ \x7f ü 😀', {"x.y": 'v"\n', "flag": True}, "/a b/c\td")
    written(odd, PROD, current=odd.name)
    assert load(file) == Contexts({odd.name: odd, "prod": PROD}, odd.name)
    assert text_of(load(file)) == file.read_text()
    written()
    assert not file.exists()


def test_a_local_cluster_is_current_until_it_is_removed() -> None:
    both = Contexts().with_local(EAST).with_local(WEST)
    assert both.current == "west"
    assert both.with_local(EAST).current == "east"
    assert both.without_local("west", "/somewhere") == Contexts().with_local(EAST)
    assert both.without_local("east", "/somewhere").current == "west"
    assert (
        both.without_local("west", "/somewhere").without_local("east", "/somewhere") == Contexts()
    )


def test_contexts_of_others_stay() -> None:
    theirs = Contexts({"prod": PROD}, "prod")
    assert theirs.with_local(EAST).current == "prod"
    assert theirs.with_local(EAST).without_local("east", "/somewhere") == theirs
    assert theirs.with_local(EAST).without_local("east", "/elsewhere") == theirs.with_local(EAST)
    assert theirs.without_local("prod", "/somewhere") == theirs
    with pytest.raises(ConfigError, match="not made by kbroker local"):
        theirs.with_local(Context("prod", {}, "/somewhere"))


@pytest.mark.parametrize(
    "problem",
    [
        BootstrapError([AttemptFailed(Address("east", 1), Cause.REFUSED)]),
        KafkaTimeoutError("too late"),
    ],
)
def test_an_error_of_the_cluster_names_the_context(
    problem: KafkaError, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(Context("east", EAST.settings, "/some where"), current="east")
    settings = Settings()
    with click.Context(kclient, obj=settings):
        exit_code(Failure(problem))
        assert "context" not in capsys.readouterr().err
        settings.client(AdminConfig)
        exit_code(Failure(problem))
    shown = capsys.readouterr().err
    assert f"  context east in {file} names the brokers" in shown
    assert "    kbroker local up --dir '/some where' --name east\n" in shown


def test_a_file_that_cannot_be_read_is_no_failure_of_a_command_that_has_brokers(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("[")
    assert brokers_of(Settings(bootstrap="b:1")) == "b:1"
