"""The programs in docstrings of public classes and modules are executed on a real cluster, as they are."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
import pytest_twisted

import kclient
from kclient import AdminClient, TopicPartition, aio, tx
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.examples import FLAGS, PUBLIC, programs
from tests.kit.waiting import eventually

pytestmark = pytest.mark.slow

EXAMPLES = {
    **{name: member for name, member in PUBLIC.items() if programs(member)},
    "kclient": kclient,
    "kclient.aio": aio,
}
RECORDS = 3


class EnoughPrinted(Exception):
    """An example has printed all records there are; some iterate for ever."""


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    return module_clusters(1)


@pytest.fixture
def bootstrap(cluster: Cluster) -> str:
    """Prepare the topic "orders" with records, and groups that begin at the first of them."""
    with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        if "payments" in (topics := admin.list_topics()):
            admin.delete_topics(["payments"])
            eventually("the topic is deleted", lambda: "payments" not in admin.list_topics())
        if "orders" not in topics:
            admin.create_topics(["orders"])
            admin.wait_for_topics(["orders"])
        with kclient.Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for n in range(RECORDS):
                producer.send("orders", b"%d" % n)
        admin.alter_group_offsets("g", {TopicPartition("orders", 0): 0})
    return cluster.bootstrap


def space_for(api: Any, bootstrap: str) -> dict[str, Any]:
    """Return the names that an example finds: the API, and clients that other examples create."""
    printed = []

    def enough(*words: object) -> None:
        printed.append(words)
        if len(printed) >= RECORDS:
            raise EnoughPrinted

    settings = {"bootstrap.servers": bootstrap}
    return {
        **{name: getattr(kclient, name) for name in kclient.__all__},
        **{name: getattr(api, name) for name in api.__all__},
        "asyncio": asyncio,
        "print": enough,
        "producer": api.Producer(settings, transactional_id="examples"),
        "consumer": api.Consumer(settings, group_id="examples"),
        "admin": api.AdminClient(settings),
        "offsets": {TopicPartition("orders", 0): 1},
    }


def compiled(text: str, bootstrap: str) -> Any:
    return compile(text.replace("localhost:9092", bootstrap), "<example>", "exec", FLAGS)


async def execute(texts: list[str], space: dict[str, Any], bootstrap: str) -> None:
    """Execute the programs of one docstring, which continue each other; close what they leave open."""
    try:
        for text in texts:
            running = eval(compiled(text, bootstrap), space)
            if inspect.iscoroutine(running):
                await running
    except EnoughPrinted:
        pass
    finally:
        for name in ("producer", "consumer", "admin"):
            await space[name].close()


def execute_blocking(texts: list[str], space: dict[str, Any], bootstrap: str) -> None:
    space["producer"].init_transactions()
    try:
        for text in texts:
            exec(compiled(text, bootstrap), space)
    except EnoughPrinted:
        pass
    finally:
        for name in ("producer", "consumer", "admin"):
            space[name].close()


BLOCKING = [n for n in EXAMPLES if not n.startswith(("kclient.aio.", "kclient.tx."))]
ASYNCIO = [n for n in EXAMPLES if n.startswith("kclient.aio.")]
TWISTED = [f"kclient.tx.{kind}" for kind in ("AdminClient", "Consumer", "Producer")]


@pytest.mark.parametrize("name", BLOCKING)
def test_an_example_of_the_blocking_api_runs(name: str, bootstrap: str) -> None:
    space = space_for(kclient, bootstrap)
    if EXAMPLES[name] is aio:  # It calls asyncio.run itself.
        space.update({member: getattr(aio, member) for member in aio.__all__})
    execute_blocking(programs(EXAMPLES[name]), space, bootstrap)


@pytest.mark.parametrize("name", ASYNCIO)
def test_an_example_of_the_asyncio_api_runs(name: str, bootstrap: str) -> None:
    async def main() -> None:
        await execute(programs(EXAMPLES[name]), space_for(aio, bootstrap), bootstrap)

    asyncio.run(main())


@pytest.mark.parametrize("name", TWISTED)
@pytest_twisted.ensureDeferred
async def test_an_example_of_the_twisted_api_runs(name, bootstrap):
    await execute(programs(EXAMPLES[name]), space_for(tx, bootstrap), bootstrap)
