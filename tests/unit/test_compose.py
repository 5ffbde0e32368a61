"""The files of compose/ that need no engine: the build context and the health check of a broker."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from docker.utils.build import exclude_paths

from kbroker.config.kafka_config import KafkaConfig
from kclient.wire import messages
from kclient.wire.schema.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from kclient.wire.versions import ApiKey

ROOT = Path(__file__).parents[2]
COMPOSE_FILES = sorted((ROOT / "compose").glob("*/compose.yaml"))
BROKERS = [
    MetadataResponseBroker(1, "broker1", 9092),
    MetadataResponseBroker(2, "broker2", 9092, "rack-b"),
]


@pytest.fixture(scope="module")
def health() -> ModuleType:
    spec = importlib.util.spec_from_file_location("health", ROOT / "compose/health.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_context_of_a_build_is_what_the_image_installs() -> None:
    patterns = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    paths = exclude_paths(ROOT, patterns) - {".dockerignore", "Dockerfile"}  # always sent
    files = {path for path in paths if (ROOT / path).is_file()}
    assert {path.split("/")[0] for path in files} == {
        *("LICENSE", "README.md", "compose", "setup.cfg", "setup.py"),
        *("kbroker", "kclient", "mirrormaker", "spark_jobs"),
    }
    assert {path for path in files if path.startswith("compose/")} == {
        "compose/health.py",
        "compose/zookeeper.py",
    }
    # What is compiled here is for this machine's Python, not for the image's.
    assert {path for path in files if path.endswith((".so", ".pyc"))} == set()


def test_the_compose_files_have_no_top_level_name() -> None:
    """Compose 1.29 refuses it: the name of the project is that of the directory."""
    for path in COMPOSE_FILES:
        assert not any(line.startswith("name:") for line in path.read_text().splitlines())


@pytest.mark.parametrize("file", COMPOSE_FILES, ids=lambda file: file.parent.name)
@pytest.mark.parametrize("port", ["", "9092", "19092"])
def test_a_port_of_the_host_meets_no_port_inside_of_a_container(file: Path, port: str) -> None:
    """Inside there is 9092 for the other containers: a host's port 9092 was a second listener at it."""
    text = re.sub(r"\$\{\w*PORT\d?:-(\d+)\}", lambda found: port or found[1], file.read_text())
    services = yaml.safe_load(text)["services"]
    brokers = {name: each for name, each in services.items() if "ports" in each}
    assert brokers
    for name, service in brokers.items():
        overrides = [each.removeprefix("--override=") for each in service["command"][2:]]
        config = KafkaConfig.load(ROOT / "compose/server.properties", overrides)
        (mapping,) = service["ports"]
        at_host, inside = mapping.split(":")
        assert f"OUTSIDE://0.0.0.0:{inside}" in config.listeners.split(",")
        assert config.advertised_listeners.split(",") == [
            f"INSIDE://{name}:9092",
            f"OUTSIDE://localhost:{at_host}",
        ]
        assert at_host == (port or at_host)


def test_the_health_check_asks_for_no_topics(health: ModuleType) -> None:
    header, position = messages.decode_request_header(health.REQUEST)
    assert (header.api_key, header.api_version) == (ApiKey.METADATA, 1)
    assert messages.decode_request(header, health.REQUEST, position) == MetadataRequest([])


@pytest.mark.parametrize(
    ("brokers", "controller", "problem"),
    [(BROKERS, 2, ""), (BROKERS, -1, "no controller"), ([], -1, "no live broker")],
)
def test_a_healthy_broker_knows_brokers_and_a_controller(
    health: ModuleType, brokers: list[MetadataResponseBroker], controller: int, problem: str
) -> None:
    response = MetadataResponse(brokers=brokers, controller_id=controller)
    found = health.problem_in(messages.encode_response(ApiKey.METADATA, 1, 1, response))
    assert (problem in found) if problem else (found == "")
