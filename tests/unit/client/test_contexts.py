"""Contexts: which cluster `kclient` uses when no option names brokers."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from twisted.python.failure import Failure

from kclient.cli.commands import kclient
from kclient.cli.run import exit_code
from kclient.cli.settings import Settings
from kclient.config import AdminConfig
from kclient.contexts import (
    Context,
    Contexts,
    changing,
    default_file,
    load,
    project_file,
    text_of,
)
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


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe=1\n")
    with pytest.raises(ConfigError, match=r"binary: it is no text in UTF-8"):
        Settings(files=(str(path),)).client(AdminConfig)


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
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
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
        assert "context east" not in capsys.readouterr().err
        settings.client(AdminConfig)
        exit_code(Failure(problem))
    shown = capsys.readouterr().err
    assert f"  context east in {file} names the brokers" in shown
    assert "    kbroker local up --dir '/some where' --name east\n" in shown


def test_a_file_that_cannot_be_read_is_no_failure_of_a_command_that_has_brokers(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("[")
    assert brokers_of(Settings(bootstrap="b:1")) == "b:1"


def test_the_option_comes_before_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    written(EAST, PROD, current="east")
    monkeypatch.setenv("KCLIENT_CONTEXT", "east")
    monkeypatch.setenv("KCLIENT_BOOTSTRAP_SERVERS", "env:1")
    settings = Settings(context_name="prod")
    values = settings.client(AdminConfig)
    assert (values["bootstrap.servers"], values["request.timeout.ms"]) == ("prod:1", 5000)
    assert settings.context == PROD
    other = Settings(context_name="prod", bootstrap="b:1", pairs=("request.timeout.ms=7",))
    values = other.client(AdminConfig)
    assert (values["bootstrap.servers"], values["request.timeout.ms"]) == ("b:1", "7")
    assert other.context is None, "it does not name the brokers"
    with pytest.raises(ConfigError, match=r"--context in .*'pord', but: east, prod"):
        Settings(context_name="pord").client(AdminConfig)


def test_a_context_comes_before_the_default_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(PROD)
    usual = tmp_path / "kclient.conf"
    usual.write_text("request.timeout.ms=1\nclient.id=mine\n")
    monkeypatch.setenv("KCLIENT_CONFIG", str(usual))
    values = Settings(context_name="prod").client(AdminConfig)
    assert (values["request.timeout.ms"], values["client.id"]) == (5000, "mine")
    values = Settings(context_name="prod", files=(str(usual),)).client(AdminConfig)
    assert values["request.timeout.ms"] == "1"


# --- a file that a user wrote


BY_HAND = """\
# Mine.
# Two lines.

current = 'prod'  # until Friday

# With both racks.
[contexts.prod]
bootstrap.servers = [ "prod:1", "prod:2" ]  # both racks
request.timeout.ms = 5000

# Anything goes.
[contexts."test 1"]
"bootstrap.servers" = "t:1"
# the end of test 1

# The last comment.
"""


def change(text: str, edit: Callable[[Contexts], Contexts]) -> str:
    path = default_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    with changing(path) as versions:
        versions.append(edit(versions[0]))
    return path.read_text()


def test_comments_and_layout_stay() -> None:
    assert load_text(BY_HAND).by_name["prod"].settings["bootstrap.servers"] == "prod:1,prod:2"
    with_east = (
        BY_HAND
        + '\n[contexts.east]\n"bootstrap.servers" = "east:1"\nlocal_directory = "/somewhere"\n'
    )
    assert change(BY_HAND, lambda c: c.with_local(EAST)) == with_east
    assert change(with_east, lambda c: c.without_local("east", "/somewhere")) == BY_HAND
    assert change(BY_HAND, lambda c: c.with_current("test 1")) == BY_HAND.replace(
        "current = 'prod'", 'current = "test 1"'
    )
    without = change(BY_HAND, lambda c: c.without(["prod"]))
    assert without == (
        '# Mine.\n# Two lines.\n\n\n# With both racks.\n\n# Anything goes.\n[contexts."test 1"]\n'
        '"bootstrap.servers" = "t:1"\n# the end of test 1\n\n# The last comment.\n'
    )
    assert change(without, lambda c: c.with_current("test 1")).startswith(
        '# Mine.\n# Two lines.\ncurrent = "test 1"\n\n'
    )
    nothing = change(BY_HAND, lambda c: c.without(["prod", "test 1"]))
    assert "Mine." in nothing
    assert "contexts" not in nothing


def load_text(text: str) -> Contexts:
    default_file().parent.mkdir(parents=True, exist_ok=True)
    default_file().write_text(text)
    return load(default_file())


IN_ONE_LINE = (
    'contexts = { a = { bootstrap.servers = "a:1" }, b = { bootstrap.servers = "b:1" } }\n'
)
NOT_A_TABLE = (
    '[contexts.a]\n"client.id" = """\n[contexts.b]\n"""\n[contexts.b]\n"client.id" = "b"\n'
)


@pytest.mark.parametrize("text", [IN_ONE_LINE, NOT_A_TABLE])
def test_another_layout_is_changed_without_a_loss_or_not_at_all(text: str) -> None:
    after = load_text(text).without(["b"])
    assert change(text, lambda c: c.without(["b"])) == text_of(after)
    with pytest.raises(ConfigError, match="edit it by hand"):
        change(f"{text}# mine\n", lambda c: c.without(["b"]))
    assert default_file().read_text() == f"{text}# mine\n"


def test_the_target_of_a_link_is_changed(file: Path, tmp_path: Path) -> None:
    mine = tmp_path / "dotfiles"
    mine.write_text(BY_HAND)
    file.parent.mkdir(parents=True)
    file.symlink_to(mine)
    with changing(file) as versions:
        versions.append(versions[0].with_local(EAST))
    assert file.is_symlink()
    assert mine.read_text() == file.read_text() != BY_HAND


def test_writers_wait_for_each_other(file: Path) -> None:
    def add(number: int) -> None:
        with changing(file) as versions:
            added = Context(f"c{number}", {"bootstrap.servers": f"h:{number}"})
            versions.append(versions[0].with_user(added, replacing=False, use=False))

    threads = [threading.Thread(target=add, args=(n,)) for n in range(20)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert load(file).by_name.keys() == {f"c{n}" for n in range(20)}


# --- kclient context


def command(*words: str, code: int = 0) -> Result:
    ended = CliRunner().invoke(kclient, ["context", *words])
    assert ended.exit_code == code, ended.output
    return ended


def test_contexts_by_command() -> None:
    assert command("list", "-J").stdout == "[]\n"
    assert "it is the current one" in command("add", "prod", "-b", "p:1", "-X", "acks=all").stderr
    assert "--context other chooses" in command("add", "other", "-b", "o:1").stderr
    taken = command("add", "other", "-b", "x:1", code=2).stderr
    assert taken == "kclient: there is a context 'other': --replace replaces it\n"
    command("add", "other", "-b", "x:1", "--replace", "--use")
    assert command("list").stdout == (
        "NAME    BOOTSTRAP-SERVERS  LOCAL-DIRECTORY\n"
        "prod    p:1                -\n"
        "other*  x:1                -\n"
    )
    command("use", "prod", "-q")
    assert [(row["name"], row["current"]) for row in json.loads(command("list", "-J").stdout)] == [
        ("prod", True), ("other", False),
    ]  # fmt: skip
    assert "'pord', but: prod, other" in command("use", "pord", code=2).stderr
    shown = json.loads(command("show", "-J").stdout)
    assert {row["name"]: row["value"] for row in shown} == {
        "bootstrap.servers": "p:1",
        "acks": "all",
    }
    assert "x:1" in command("show", "--context", "other").stdout
    assert "no current context now" in command("rm", "prod").stderr
    assert "no current context" in command("show", code=2).stderr
    command("rm", "nosuch", "other", code=2)
    assert list(load(default_file()).by_name) == ["other"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["prod"], "give -b HOST:PORT"),
        (["prod", "-b", "p:1", "-X", "ack=all"], "unknown setting, did you mean acks?"),
        (["prod", "-b", "p:1", "-X", "linger.ms=soon"], "linger.ms: 'soon' is not a number"),
        (["prod", "-F", "/nonexistent"], "/nonexistent: No such file"),
        (["a\nb", "-b", "p:1"], "not plain text"),
        (["", "-b", "p:1"], "not plain text"),
    ],
)
def test_a_context_that_cannot_work_is_not_added(
    words: list[str], problem: str, file: Path
) -> None:
    assert problem in command("add", *words, code=2).stderr
    assert not file.exists()


def test_secrets_are_not_shown(file: Path) -> None:
    written(Context("prod", {"bootstrap.servers": "p:1", "sasl.password": "hunter2"}))
    for form in ("text", "json", "csv"):
        assert "hunter2" not in command("show", "prod", "--format", form).output


def test_a_variable_before_the_current_context_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    written(EAST, PROD, current="east")
    monkeypatch.setenv("KCLIENT_CONTEXT", "east")
    assert "KCLIENT_CONTEXT=east is set" in command("use", "prod").stderr
    assert "KCLIENT_CONTEXT=east is set" in command("list").stderr


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kclient.toml of a repository; the current directory is two below its root."""
    root = tmp_path / "project"
    (root / "src" / "app").mkdir(parents=True)
    (root / ".git").mkdir()
    monkeypatch.chdir(root / "src" / "app")
    return root / "kclient.toml"


def test_contexts_of_the_project_come_first(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(EAST, PROD, current="east")
    project.write_text(text_of(Contexts({"prod": Context("prod", {"bootstrap.servers": "p:9"})})))
    assert brokers_of(Settings()) == "east:1", "the project has no current one"
    assert brokers_of(Settings(context_name="prod")) == "p:9"
    assert brokers_of(Settings(context_name="east")) == "east:1"
    project.write_text('current = "prod"\n' + project.read_text())
    usual = tmp_path / ".config" / "kclient.conf"
    usual.parent.mkdir()
    usual.write_text("bootstrap.servers=usual:1\n")
    assert brokers_of(Settings()) == "p:9"
    assert brokers_of(Settings(bootstrap="b:1")) == "b:1"
    monkeypatch.setenv("KCLIENT_CONTEXT", "east")
    assert brokers_of(Settings()) == "east:1"
    monkeypatch.delenv("KCLIENT_CONTEXT")
    monkeypatch.chdir(tmp_path)
    assert brokers_of(Settings()) == "usual:1", "the project is elsewhere"


def test_the_current_context_of_a_project_may_be_one_of_the_user(project: Path) -> None:
    project.write_text('current = "staging"\n')
    with pytest.raises(ConfigError, match=f"current in {project}, .*contexts.toml: there is no"):
        brokers_of(Settings())
    written(Context("staging", {"bootstrap.servers": "s:1"}))
    assert brokers_of(Settings()) == "s:1"


def test_commands_show_the_projects_contexts_and_do_not_change_them(project: Path) -> None:
    text = '# ours\ncurrent = "here"\n[contexts.here]\n"bootstrap.servers" = "h:1"\n'
    project.write_text(text)
    assert f"{project} has the current context here" in command("add", "mine", "-b", "m:1").stderr
    rows = {row["name"]: row for row in json.loads(command("list", "-J").stdout)}
    assert (rows["here"]["current"], rows["here"]["file"]) == (True, str(project))
    assert (rows["mine"]["current"], rows["mine"]["file"]) == (False, str(default_file()))
    assert "h:1" in command("show").stdout
    assert "there is no context 'here'" in command("rm", "here", code=2).stderr
    assert project.read_text() == text


def test_the_projects_file_is_looked_for_within_its_repository(project: Path) -> None:
    below, root = Path.cwd(), project.parent
    above = root.parent / "kclient.toml"
    above.write_text("")
    assert project_file(below) is None, "that one is of another project, or of a shared folder"
    project.write_text("")
    assert project_file(below) == project
    (root / "src" / "kclient.toml").write_text("")
    assert project_file(below) == root / "src" / "kclient.toml"
    elsewhere = root.parent / "elsewhere"
    elsewhere.mkdir()
    assert project_file(elsewhere) is None
    assert project_file(root.parent) == above


def test_a_projects_file_of_another_user_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write_text('current = "theirs"\n[contexts.theirs]\n"bootstrap.servers" = "t:1"\n')
    owner = project.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match=f"belongs to another user .uid {owner}.*-b"):
        brokers_of(Settings())
    assert brokers_of(Settings(bootstrap="b:1")) == "b:1"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert brokers_of(Settings()) == "t:1", "root may be a container's, with files of its user"


def test_a_directory_that_was_removed_has_no_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    written(EAST, current="east")
    assert brokers_of(Settings()) == "east:1"


def test_a_file_of_a_newer_version_is_named(file: Path) -> None:
    load_text("")
    file.write_text("version = 2\n")
    assert f"{file}: expected" in command("list", code=2).stderr
