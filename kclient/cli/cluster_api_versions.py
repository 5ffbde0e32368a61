"""`kclient cluster api-versions`: which versions of each API brokers support, and the version that kclient uses."""

from __future__ import annotations

from typing import Any

import click

from kclient.cli.commands import with_settings
from kclient.cli.context import Settings, admin_client, run
from kclient.cli.help import Command
from kclient.cli.output import show


@click.command(
    "api-versions",
    cls=Command,
    examples=("kclient cluster api-versions", "kclient cluster api-versions --broker 1 -J"),
)
@click.option("--broker", "nodes", type=int, multiple=True, help="Only these brokers.")
@with_settings
def api_versions(settings: Settings, nodes: tuple[int, ...]) -> None:
    """Show the versions of each API that the brokers support, and the version that kclient uses.

    Brokers with other versions of an API have a row of their own: in a rolling upgrade, for example. USED is empty
    where kclient has no version of the API.
    """

    async def main(reactor: Any) -> None:
        from kclient.wire.versions import SUPPORTED, ApiKey

        found: dict[tuple[int, int, int], list[int]] = {}
        async with admin_client(settings, reactor) as admin:
            live = sorted(admin.cluster.metadata.brokers)
            unknown = sorted(set(nodes) - set(live))
            if unknown:
                raise ValueError(f"no live broker {unknown[0]}; the live brokers are {live}")
            for node in nodes or live:
                connection = await admin.cluster.connection(node)
                for key, (least, most) in connection.api_versions.items():
                    found.setdefault((key, least, most), []).append(node)
        names = {int(key): key.name for key in ApiKey}
        rows = []
        for (key, least, most), brokers in sorted(found.items()):
            ours = SUPPORTED.get(ApiKey(key)) if key in names else None
            common = None if ours is None else min(ours.max, most)
            usable = common is not None and ours is not None and common >= max(ours.min, least)
            rows.append(
                {
                    "key": key,
                    "api": names.get(key),
                    "brokers": brokers,
                    "min_version": least,
                    "max_version": most,
                    "used": common if usable else None,
                }
            )
        show(rows, ("key", "api", "min_version", "max_version", "used", "brokers"), settings.format)

    run(main)
