"""The asyncio API: the same clients with coroutines, for ``async with``, ``async for`` and ``await``.

    async def main() -> None:
        async with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
            metadata = await producer.send("orders", b"value", key="key")
        settings = {"bootstrap.servers": "localhost:9092", "group.id": "g"}
        async with Consumer(settings, ["orders"]) as consumer:
            async for record in consumer:
                print(record.offset, record.value)

    asyncio.run(main())

A client belongs to the event loop in which it is created; one process may run several loops, one after the other or in
threads. Nothing runs in other threads, except name resolution. `run` runs such a coroutine on Twisted's reactor.
"""

from kclient.aio.admin import AdminClient
from kclient.aio.consumer import Consumer
from kclient.aio.event_loop import run
from kclient.aio.producer import Producer
from kclient.consumer.subscription import RebalanceListener

AIOConsumer = Consumer
AIOProducer = Producer
"""The names of confluent_kafka.aio."""

__all__ = [
    "AIOConsumer",
    "AIOProducer",
    "AdminClient",
    "Consumer",
    "Producer",
    "RebalanceListener",
    "run",
]
