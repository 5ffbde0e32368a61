"""`kclient topic cp`: copies the records of a topic to another one, also of another cluster.

Key, value, headers, timestamp and partition stay; offsets do not, because the destination assigns its own. Records of
aborted transactions and control records are not copied. What arrives after the start of the command is left out, so the
copy of a topic that is written to ends.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

from kclient.cli.answers import code_for, print_problems
from kclient.cli.commands import with_settings
from kclient.cli.delivery import Deliveries, Given
from kclient.cli.help import Command
from kclient.cli.names import CONTEXT, SERVERS, TOPIC
from kclient.cli.offset_range import NO_SUCH_TOPIC_S, assign, read_range
from kclient.cli.offset_spec import OffsetSpec, parse_offsets
from kclient.cli.output import print_error
from kclient.cli.progress import Progress
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client
from kclient.types import NewTopic, TopicPartition


@dataclass(frozen=True)
class _Copy:
    source: str
    destination: str
    spec: OffsetSpec
    compression: str | None


@click.command(
    "cp",
    cls=Command,
    examples=(
        "kclient topic cp orders orders-copy",
        "kclient topic cp orders orders -o @-1h --dst-context staging",
    ),
)
@click.argument("source", metavar="SRC", type=TOPIC)
@click.argument("destination", metavar="DST", type=TOPIC)
@click.option(
    "-o",
    "--offset",
    default="start",
    show_default=True,
    help="Where to begin and end, as of consume -o: 47, -3, 47:99, @-1h, @t1:t2.",
)
@click.option("--dst-context", type=CONTEXT, metavar="NAME", help="The context of DST's cluster.")
@click.option(
    "--dst-bootstrap-server",
    type=SERVERS,
    metavar="HOST:PORT",
    help="The brokers of DST's cluster.",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="Compression of batches (default none).",
)
@with_settings
def copy(
    settings: Settings,
    source: str,
    destination: str,
    offset: str,
    dst_context: str | None,
    dst_bootstrap_server: str | None,
    compression: str | None,
) -> None:
    """Copy the records of topic SRC to topic DST, up to the present log ends.

    DST is created if it does not exist, with the partitions and settings of SRC. Records keep their partition if DST
    has as many partitions; else the key decides.
    """
    elsewhere = settings
    if dst_context or dst_bootstrap_server:
        elsewhere = replace(
            settings,
            bootstrap=dst_bootstrap_server,
            context_name=dst_context,
            files=(),
            pairs=(),
            context=None,
        )
    elif source == destination:
        raise click.UsageError(
            "SRC and DST are the same topic; --dst-context names another cluster"
        )
    try:
        spec = parse_offsets(offset, now_ms=int(time.time() * 1000))
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    wanted = _Copy(source, destination, spec, compression)
    run(lambda reactor: _copy(settings, elsewhere, wanted, reactor))


async def _copy(settings: Settings, elsewhere: Settings, wanted: _Copy, reactor: Any) -> int:
    from kclient.config import ConsumerConfig, ProducerConfig
    from kclient.consumer.client import Consumer
    from kclient.producer.producer import Producer

    reading = {
        "max.poll.records": 5000,
        **settings.client(ConsumerConfig),
        "enable.auto.commit": "false",
        "isolation.level": "read_committed",
        "allow.auto.create.topics": "false",
    }
    writing = elsewhere.client(ProducerConfig)
    if wanted.compression is not None:
        writing["compression.type"] = wanted.compression
    async with Consumer(config=reading, reactor=reactor) as consumer:
        patience = min(settings.timeout, NO_SUCH_TOPIC_S)
        numbers = await consumer.partitions_for_topic(wanted.source, patience)
        places = [TopicPartition(wanted.source, number) for number in numbers]
        partitions = await _destination(settings, elsewhere, wanted, reactor)
        async with Producer(writing, reactor=reactor) as producer:
            # Else the first 50,000 records would wait for metadata one by one.
            await producer.cluster.partitions(wanted.destination, timeout=settings.timeout)
            deliveries = Deliveries(producer, wanted.destination)
            missing = await _records(
                settings,
                reactor,
                consumer,
                places,
                wanted.spec,
                deliveries,
                keeps_partitions=partitions == len(places),
            )
            await producer.flush()
    print_problems(deliveries.problems)
    for tp, at in missing.items():
        print_error(
            f"{tp}: no record for {settings.timeout:g} s at offset {at}; the rest is not copied"
        )
    settings.note(
        f"{deliveries.delivered} of {deliveries.sent} records copied from {wanted.source} to {wanted.destination}"
    )
    failed = deliveries.problems.total() + len(missing)
    return code_for(deliveries.delivered, deliveries.delivered + failed)


async def _destination(settings: Settings, elsewhere: Settings, wanted: _Copy, reactor: Any) -> int:
    """Return the number of partitions of the destination, which is created if it does not exist."""
    from kclient.cli.topic_describe import with_configs
    from kclient.errors import KafkaError

    async with admin_client(elsewhere, reactor) as there:
        answers = await there.describe_topics([wanted.destination], raise_errors=False)
        known = answers[wanted.destination]
        if not isinstance(known, KafkaError):
            return len(known.partitions)
        async with admin_client(settings, reactor) as here:
            (like,) = await with_configs(here, await here.describe_topics([wanted.source]))
        copies = len(next(iter(like.topic.partitions.values())).replicas)
        count = len(like.topic.partitions)
        new = NewTopic(
            wanted.destination,
            count,
            min(copies, len(there.cluster.metadata.brokers)),
            dict(like.overrides),
        )
        await there.create_topics([new])
        await there.wait_for_topics([wanted.destination])
        settings.note(f"Created topic {wanted.destination} with {count} partitions.")
        return count


async def _records(
    settings: Settings,
    reactor: Any,
    consumer: Any,
    places: list[TopicPartition],
    spec: OffsetSpec,
    deliveries: Deliveries,
    *,
    keeps_partitions: bool,
) -> Mapping[TopicPartition, int]:
    """Send the records of the source; return the positions of partitions that were not read to their ends."""
    firsts, stops = await assign(consumer, places, spec, at_end=True)

    async def send_next() -> bool:
        found = await consumer.poll(timeout=0.2)
        for tp, records in found.items():
            await deliveries.send(
                Given(
                    record.key,
                    record.value,
                    list(record.headers),
                    record.timestamp if record.timestamp >= 0 else None,
                    record.partition if keeps_partitions else None,
                )
                for record in records
                if record.offset < stops[tp]
            )
        return bool(found)

    left = await read_range(
        consumer,
        firsts,
        stops,
        send_next,
        verb="copying",
        progress=Progress(reactor.seconds, quiet=settings.quiet),
        seconds=reactor.seconds,
        timeout=settings.timeout,
        is_over=lambda: deliveries.timed_out,
    )
    return {} if deliveries.timed_out else left
