"""`kclient cluster api-versions`: which versions of each API brokers support, and the version that kclient uses."""

from __future__ import annotations

from typing import Any

import click

from kclient.cli.commands import with_settings
from kclient.cli.help import Command
from kclient.cli.output import show
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client


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
        from kclient.wire.versions import ApiKey

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
            rows.append(
                {
                    "key": key,
                    "api": names.get(key),
                    "brokers": brokers,
                    "min_version": least,
                    "max_version": most,
                    "used": _used(key, least, most),
                }
            )
        show(rows, ("key", "api", "min_version", "max_version", "used", "brokers"), settings.format)

    run(main)


def _used(key: int, least: int, most: int) -> int | None:
    """Return the version that kclient uses with a broker that supports *least* to *most*, None if it has none."""
    from kclient.wire.errors import UnsupportedVersion
    from kclient.wire.versions import SUPPORTED, ApiKey, VersionRange, negotiate

    try:
        api = ApiKey(key)
        return negotiate(api, SUPPORTED.get(api), VersionRange(least, most))
    except (ValueError, UnsupportedVersion):
        return None  # a key that kclient does not know, or no common version
