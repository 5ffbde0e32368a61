"""A member of a group as a process of its own, with our client: made to be killed.

    python -m tests.kit.kclient_member BOOTSTRAP GROUP TOPIC NAME=VALUE...

Writes {"assigned": [partitions]} as a JSON line whenever its assignment has changed, and commits as it goes.
"""

from __future__ import annotations

import json
import sys

from kclient import Consumer


def main() -> None:
    """Consume for ever."""
    bootstrap, group, topic, *settings = sys.argv[1:]
    config = dict(setting.split("=", 1) for setting in settings)
    last: list[int] = []
    with Consumer(config={**config, "bootstrap.servers": bootstrap, "group.id": group}) as consumer:
        consumer.subscribe([topic])
        while True:
            consumer.poll(timeout=0.1)
            now = sorted(tp.partition for tp in consumer.assignment())
            if now != last:
                sys.stdout.write(json.dumps({"assigned": now}) + "\n")
                sys.stdout.flush()
                last = now


if __name__ == "__main__":
    main()
