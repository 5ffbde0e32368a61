"""The mirror's configuration file: what is taken, what is refused, what is warned about."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kclient.errors import ConfigError
from mirrormaker.__main__ import main
from mirrormaker.config import MirrorConfig
from mirrormaker.settings import link_settings

GOOD = {
    "clusters": "east, west",
    "east.bootstrap.servers": "e1:9092,e2:9092",
    "west.bootstrap.servers": "w1:9092",
    "east->west.enabled": "true",
}


def config(**more: str) -> MirrorConfig:
    return MirrorConfig.of({**GOOD, **more})


def settings(name: str, value: str):
    (flow,) = MirrorConfig.of({**GOOD, name: value}).flows
    return flow.settings


def problems(values: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as error:
        MirrorConfig.of(values)
    return error.value.message


def test_a_direction_is_what_is_enabled() -> None:
    (flow,) = config().flows
    assert (flow.name, flow.source, flow.target) == ("east->west", "east", "west")
    assert flow.source_client.bootstrap_servers == "e1:9092,e2:9092"
    assert flow.target_client.bootstrap_servers == "w1:9092"
    assert not config().warnings


def test_both_directions_and_several_clusters_are_possible() -> None:
    found = MirrorConfig.of(
        {
            **GOOD,
            "clusters": "east, west, north",
            "north.bootstrap.servers": "n:1",
            "west->east.enabled": "true",
            "north->east.enabled": "true",
            "north->west.enabled": "false",
        }
    )
    assert {flow.name for flow in found.flows} == {"east->west", "west->east", "north->east"}


def test_defaults_are_those_of_the_table() -> None:
    (flow,) = config().flows
    assert flow.settings.topics == ".*"
    assert flow.settings.replication_policy == "IdentityReplicationPolicy"
    assert flow.settings.replication_factor == -1
    assert flow.settings.gap_policy == "fail"


@pytest.mark.parametrize(
    ("name", "value", "attribute", "expected"),
    [
        ("topics", "orders.*", "topics", "orders.*"),
        ("east->west.topics", "a,b", "topics", "a,b"),
        ("buffer.memory", "2000000", "buffer_memory", 2_000_000),
        ("east.consumer.fetch.max.bytes", "77", "fetch_max_bytes", 77),
        ("west.producer.max.request.size", "78", "max_request_size", 78),
        ("east->west.consumer.fetch.max.wait.ms", "5", "fetch_max_wait_ms", 5),
        ("gap.policy", "SKIP", "gap_policy", "skip"),
        ("gap.policy", "new-lineage", "gap_policy", "new-lineage"),
        (
            "replication.policy.class",
            "org.apache.kafka.connect.mirror.DefaultReplicationPolicy",
            "replication_policy",
            "DefaultReplicationPolicy",
        ),
    ],
)
def test_settings_are_read_from_their_places(
    name: str, value: str, attribute: str, expected: object
) -> None:
    assert getattr(settings(name, value), attribute) == expected


def test_the_most_special_name_wins() -> None:
    found = MirrorConfig.of({**GOOD, "topics": "all", "east->west.topics": "mine"})
    assert found.flows[0].settings.topics == "mine"


def test_a_consumer_setting_of_the_target_is_not_for_reading_the_source() -> None:
    assert settings("west.consumer.fetch.max.bytes", "77").fetch_max_bytes != 77


def test_one_error_lists_all_problems() -> None:
    message = problems(
        {
            "clusters": "east, west",
            "east.bootstrap.servers": "no port here:x",
            "east->west.enabled": "true",
            "topics": "[",
            "buffer.memory": "much",
            "gap.policy": "perhaps",
        }
    )
    for part in (
        "topics: '[' is not a regular expression",
        "buffer.memory: 'much' is not a whole number",
        "gap.policy: 'perhaps' is not one of fail, skip, new-lineage",
        "west.bootstrap.servers: is missing",
        "bootstrap.servers: 'no port here:x' is not host:port",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "clusters: is missing"),
        ({**GOOD, "clusters": "east"}, "name at least two"),
        ({**GOOD, "clusters": "east, east"}, "is a duplicate"),
        ({**GOOD, "clusters": "a->b, west"}, "contains . or ->"),
        ({**GOOD, "east->west.enabled": "false"}, "no direction is enabled"),
        ({**GOOD, "east->west.enabled": "yes"}, "neither true nor false"),
        (
            {**GOOD, "replication.policy.class": "my.Policy"},
            "'my.Policy' is not one of IdentityReplicationPolicy",
        ),
        (
            {**GOOD, "replication.policy.class": "no.such.module:Policy"},
            "'no.such.module:Policy' cannot be used: ModuleNotFoundError",
        ),
        ({**GOOD, "east.security.protocol": "SASL_SSL"}, "security.protocol"),
        ({**GOOD, "replication.policy.separator": ""}, "'' is not of letters, digits"),
        ({**GOOD, "east->west.replication.policy.separator": "/"}, "'/' is not of letters"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, str], message: str) -> None:
    assert message in problems(values)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("east->west.topic", "unknown setting, did you mean east->west.topics?"),
        ("east.bootstrap.server", "did you mean east.bootstrap.servers?"),
        ("east->north.topics", "is not a pair of the named clusters"),
        ("tasks.max", "accepted, has no effect here"),
        ("east.topics", "has no effect with this prefix, did you mean east->west.topics?"),
        ("consumer.fetch.max.bytes", "with this prefix, did you mean fetch.max.bytes?"),
        ("east.producer.fetch.max.bytes", "did you mean east.consumer.fetch.max.bytes?"),
        ("east->west.admin.topics", "did you mean east->west.topics?"),
        ("east.consumer.security.protocol", "did you mean east.security.protocol?"),
        ("security.protocol", "did you mean east.security.protocol?"),
        ("enabled", "did you mean east->west.enabled?"),
        ("zookeeper.connect", "has no effect, its prefix is the alias of a target"),
        ("east->west.zookeeper.connect", "as in west.zookeeper.connect"),
        ("east.consumer.auto.offset.reset", "kmirror copies whole batches and has no such setting"),
        ("east->west.producer.compression.type", "kmirror copies whole batches"),
        ("west.producer.batch.size", "kmirror copies whole batches"),
    ],
)
def test_names_without_effect_are_warned_about(name: str, message: str) -> None:
    (warning,) = config(**{name: "1"}).warnings
    assert warning.startswith(name)
    assert message in warning


@pytest.mark.parametrize("clusters", [{}, {"clusters": ""}, {"clusters": "east"}])
@pytest.mark.parametrize("name", ["bootstrap.servers", "east.topics", "north->west.topics"])
def test_without_two_clusters_that_is_the_problem_whatever_else_is_there(
    clusters: dict[str, str], name: str
) -> None:
    assert "clusters: " in problems({**clusters, name: "1"})


def test_names_of_earlier_mirrormakers_exclude_as_the_present_ones_do() -> None:
    old = {"topics.blacklist": "secret.*", "east->west.groups.blacklist": "mine"}
    found = config(**old)
    assert found.flows[0].settings.topics_exclude == "secret.*"
    assert found.flows[0].settings.groups_exclude == "mine"
    assert found.warnings == (
        "topics.blacklist: is the deprecated name of topics.exclude",
        "east->west.groups.blacklist: is the deprecated name of east->west.groups.exclude",
    )
    assert not found.mistakes
    both = config(**old, **{"topics.exclude": "other"})
    assert both.flows[0].settings.topics_exclude == "other"


@pytest.mark.long
@pytest.mark.parametrize("command", ["plan", "verify", "promote"])
def test_every_command_names_settings_that_may_be_mistakes(command: str, tmp_path: Path) -> None:
    """Not only `run`: a promotion with a mistyped `topics` would be one of all topics."""
    path = tmp_path / "mirror.properties"
    values = {**GOOD, "east->west.topic": "orders", "tasks.max": "4"}
    values |= {f"{name}.bootstrap.servers": "127.0.0.1:1" for name in ("east", "west")}
    path.write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
    code = "import sys; from mirrormaker.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, command, str(path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode in (3, 4), done.stderr
    assert "configuration: east->west.topic: unknown setting" in done.stderr
    assert ("tasks.max" in done.stderr) == (command == "plan")


@pytest.mark.parametrize("name", ["replication.factor", "heartbeats.topic.replication.factor"])
def test_a_topic_has_replicas(name: str) -> None:
    """With 0 every creation of a topic failed."""
    for accepted in ("-1", "1"):
        assert config(**{name: accepted})
    for refused in ("0", "-2", "two"):
        assert f"{name}: '{refused}' is neither -1 nor a positive" in problems(
            {**GOOD, name: refused}
        )


@pytest.mark.parametrize(
    ("name", "most"),
    [
        *(
            (name, 2**31 - 1)
            for name in (
                *("fetch.max.bytes", "max.partition.fetch.bytes", "fetch.max.wait.ms"),
                *("max.request.size", "request.timeout.ms", "transaction.timeout.ms"),
                "max.in.flight.requests.per.connection",
            )
        ),
        *((name, 2**63 - 1) for name in ("buffer.memory", "linger.ms", "alarm.lag.records")),
        *((name, 2**63 - 1) for name in link_settings() if name.endswith(".seconds")),
        *((name, 2**15 - 1) for name in link_settings() if name.endswith("replication.factor")),
    ],
)
def test_a_number_has_the_bounds_of_its_type_in_kafka(name: str, most: int) -> None:
    """Above them a request could not be encoded, or a time not be computed: the process ended with 70."""
    settings(name, str(most))
    assert f"{name}: {most + 1} is above {most}" in problems({**GOOD, name: str(most + 1)})


def test_acls_are_copied_on_request_only() -> None:
    name = "east->west.sync.topic.acls.enabled"
    assert config().flows[0].settings.sync_acls == "report"
    assert config(**{name: "True"}).flows[0].settings.sync_acls == "true"
    assert "'yes' is not one of report, true, false" in problems({**GOOD, name: "yes"})


def test_a_file_is_read_as_java_properties(tmp_path: Path) -> None:
    path = tmp_path / "mirror.properties"
    path.write_text(
        "# a comment\n" + "".join(f"{key} = {value}\n" for key, value in GOOD.items())
        + "east->west.topics = orders, \\\n   payments\n"
    )  # fmt: skip
    assert MirrorConfig.load(path).flows[0].settings.topics == "orders, payments"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.*No such file"):
        MirrorConfig.load(tmp_path / "nowhere")


def test_the_zookeeper_of_a_target_makes_its_directions_shared() -> None:
    (flow,) = config().flows
    assert flow.workers is None
    (flow,) = config(**{"west.zookeeper.connect": "zk1:2181,zk2:2181/west"}).flows
    assert flow.workers == ("zk1:2181,zk2:2181/west", 18.0)
    found = config(
        **{"west.zookeeper.connect": "zk1:2181", "west.zookeeper.session.timeout.ms": "6000"}
    )
    assert found.flows[0].workers == ("zk1:2181", 6.0)
    assert not found.warnings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {
                "west.zookeeper.connect": "zk:2181",
                "west.zookeeper.session.timeout.ms": "2147483648",
            },
            "west.zookeeper.session.timeout.ms: 2147483648 is above 2147483647",
        ),
        (
            {"west.zookeeper.connect": "no servers"},
            "west.zookeeper.connect: 'no servers' is not a list of ZooKeeper servers",
        ),
        (
            {"west.zookeeper.connect": "zk:1", "west.zookeeper.session.timeout.ms": "6"},
            "west.zookeeper.session.timeout.ms: 6 is below 1000",
        ),
        (
            {"west.zookeeper.connect": "zk:1", "refresh.topics.enabled": "false"},
            "west.zookeeper.connect: needs refresh.topics.enabled=true",
        ),
        (
            {"west.zookeeper.connect": "zk:1", "east->west.target.offsets": "renumber"},
            "west.zookeeper.connect: cannot be with target.offsets=renumber",
        ),
    ],
)
def test_workers_without_a_way_to_meet_are_refused(values: dict[str, str], message: str) -> None:
    assert message in problems({**GOOD, **values})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("east.zookeeper.connect", "has no effect, no direction into east is enabled"),
        (
            "west.zookeeper.session.timeout.ms",
            "has no effect, west.zookeeper.connect is not set",
        ),
        ("zookeeper.connect", "has no effect, its prefix is the alias of a target"),
        ("west.zookeeper.conect", "did you mean west.zookeeper.connect?"),
    ],
)
def test_a_zookeeper_that_no_direction_uses_is_warned_about(name: str, message: str) -> None:
    (warning,) = config(**{name: "6000"}).warnings
    assert warning.startswith(name)
    assert message in warning


def test_what_needs_the_same_offsets_is_refused_with_other_offsets() -> None:
    renumbered = {**GOOD, "target.offsets": "renumber"}
    (flow,) = MirrorConfig.of(renumbered).flows
    assert (
        "exactly once for consumers with isolation.level=read_committed" in flow.settings.guarantee
    )
    (flow,) = MirrorConfig.of({**renumbered, "exactly.once.source.support": "disabled"}).flows
    assert "at least once" in flow.settings.guarantee
    evidence = problems({**renumbered, "emit.evidence.enabled": "true"})
    assert "emit.evidence.enabled=true: cannot be with target.offsets=renumber" in evidence
    workers = problems({**renumbered, "west.zookeeper.connect": "zk:2181"})
    assert "west.zookeeper.connect: cannot be with target.offsets=renumber" in workers
    deletes = problems({**renumbered, "topic.deletion.policy": "delete"})
    assert "topic.deletion.policy=delete: cannot be with target.offsets=renumber" in deletes


def test_commands_that_compare_offsets_are_refused_with_other_offsets(tmp_path: Path) -> None:
    path = tmp_path / "mirror.properties"
    values = {**GOOD, "target.offsets": "renumber"}
    path.write_text("".join(f"{name} = {value}\n" for name, value in values.items()))
    for command in ("promote", "failback", "verify"):
        result = CliRunner().invoke(main, [command, str(path)])
        assert result.exit_code == 2
        assert "has target.offsets=renumber" in result.output


@pytest.mark.parametrize("name", ["truncate", "truncate+export", "truncate-and-export"])
def test_a_policy_that_truncates_is_refused_with_its_reason_and_what_serves_instead(
    name: str,
) -> None:
    message = problems({**GOOD, "gap.policy": name})
    assert f"gap.policy: '{name}' is no policy" in message
    assert "acknowledged records of the target" in message
    assert "kmirror truncate" in message


def test_a_new_lineage_keeps_what_the_deletion_policy_deletes() -> None:
    both = {"gap.policy": "new-lineage", "topic.deletion.policy": "delete"}
    assert "cannot be with topic.deletion.policy=delete" in problems({**GOOD, **both})
    renumbered = {"gap.policy": "new-lineage", "target.offsets": "renumber"}
    assert "gap.policy=new-lineage: cannot be with target.offsets=renumber" in problems(
        {**GOOD, **renumbered}
    )
