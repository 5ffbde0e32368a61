"""Writes docs/mirror-settings.md: each setting of kmirror, its default and what it does.

    python tools/mirror_settings_page.py            # writes the page
    python tools/mirror_settings_page.py --check    # exit code 1 if the page is not that of the code

The settings of a direction are those of `mirrormaker.settings`, those of a connection those of `kclient.config`.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kclient.config import CommonConfig, dotted  # noqa: E402
from mirrormaker import config, settings  # noqa: E402

PAGE: Final = ROOT / "docs" / "mirror-settings.md"

HEAD: Final = """# Settings of kmirror

<!-- written by tools/mirror_settings_page.py; do not edit -->

The file is Kafka's connect-mirror-maker.properties. [mirroring.md](mirroring.md#set-up) begins with one.
In the examples here east is a source and west a target.

| name | what it does |
|---|---|
| `clusters` | the aliases of the clusters, at least two, as in `east, west` |
| `east.bootstrap.servers` | the addresses of a cluster; required for the clusters of each enabled direction |
"""

DIRECTIONS: Final = """
## Of a direction

`east->west.NAME` is for one direction, `NAME` alone for all; only `enabled` is never for all. Names with a role are
also read as `east.consumer.NAME`, for all directions out of east, or `west.producer.NAME`, for all directions into
west. The most specific name wins.

| name | default | role | what it does |
|---|---|---|---|
"""

CONNECTIONS: Final = """
## Of a connection

With the alias of the cluster before them: `east.NAME`, or `east.admin.NAME`, which wins. As `east.consumer.NAME` or
`east.producer.NAME` they have no effect, except `request.timeout.ms` as above. Names and defaults are those of
kclient: {names}.

## Of MirrorMaker 2, without effect here

Offsets at the target are those of the source, and Kafka Connect does not run. So kmirror accepts these names, and
prints that they have no effect: {unused}.
"""


def page() -> str:
    """Return the text of the page."""
    rows = [
        f"| `west.{config.ZOOKEEPER}` | the target's ZooKeeper, where several workers share a direction"
        " ([mirroring.md](mirroring.md#several-workers)) |\n",
        f"| `west.{config.SESSION_TIMEOUT}` | how long a worker may be silent before the others take its partitions"
        f" ({config.DEFAULT_SESSION_TIMEOUT}) |\n",
        DIRECTIONS,
    ]
    for name, setting in settings.link_settings().items():
        side, doc = setting.metadata["side"], _cell(setting.metadata["doc"])
        rows.append(f"| `{name}` | {_default(setting.default)} | {side} | {doc} |\n")
    clients = sorted(dotted(each.name) for each in dataclasses.fields(CommonConfig))
    rows.append(
        CONNECTIONS.format(
            names=", ".join(f"`{name}`" for name in clients),
            unused=", ".join(f"`{name}`" for name in sorted(settings.NOT_APPLICABLE)),
        )
    )
    return HEAD + "".join(rows)


def _default(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the page, or compare it."""
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
