"""Draws a source and its renumbered copy, of which the end lags, was lost, damaged, repeated or compacted."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.kit.audit_logs import Log, Rec

MARKER = Rec(b"", b"", 1, control=True)


@dataclass
class Drawn:
    """Two logs, and what happened to them."""

    source: Log = field(default_factory=Log)
    target: Log = field(default_factory=Log)
    lag: list[Rec] = field(default_factory=list)
    """Records that were not copied yet."""
    lost: list[Rec] = field(default_factory=list)
    strangers: int = 0
    repeated: int = 0
    damaged: int = 0
    """How many of the last copies have another value."""
    cleans: tuple[bool, bool] = (False, False)
    complete: bool = False
    window: int = 10

    @property
    def is_healthy(self) -> bool:
        """Whether the mirror copied everything in order, and maybe some of it twice."""
        return not self.lost and not self.strangers and not self.damaged


LIKE_EACH_OTHER = 5_000
"""The timestamp of records that differ in their values only."""


def drawn(rng: random.Random, *, alike: bool = False) -> Drawn:
    """Draw two logs; *alike*: their records have no keys and one timestamp, and the last copy may be damaged."""
    made = Drawn(complete=rng.random() < 0.3, window=rng.choice([7, 10, 50]))
    made.cleans = rng.choice([(False, False), (False, True), (True, False), (True, True)])
    if alike:
        made.cleans = False, False
    keys = rng.choice([3, 10, 1 << 30]) if any(made.cleans) else 1 << 30
    markers = rng.choice([0.0, 0.0, 0.2])
    for number in range(rng.choice([20, 60, 200])):
        deletes = any(made.cleans) and rng.random() < 0.15
        value = None if deletes else b"v%d" % number
        record = Rec(b"k%d" % (number % min(keys, rng.randrange(1, 300))), value, number)
        made.source.append(Rec(None, value, LIKE_EACH_OTHER) if alike else record)
        if rng.random() < markers:
            made.source.append(MARKER)
    written = [each for _, each in sorted(made.source.records.items()) if not each.control]
    copied = rng.choice([0, len(written), *[rng.randrange(len(written)) for _ in range(6)]])
    made.lag = written[copied:]
    lost = {rng.randrange(copied) for _ in range(rng.choice([0, 0, 0, 1, 3]))} if copied else set()
    made.lost = [written[at] for at in sorted(lost)]
    if rng.random() < 0.25:
        made.strangers = rng.choice([1, 4, 30])
    elif not lost and rng.random() < 0.3:
        made.repeated = min(copied, rng.choice([1, 3, 20]))
    target = copies(rng, made, written[:copied], lost, alike=alike)
    ends = rng.choice([0.0, 0.1])
    for each in target:
        made.target.append(each)
        if rng.random() < ends:
            made.target.append(MARKER)
    for _ in range(rng.choice([0, 1, 1, 2, 8])):
        made.target.end += rng.choice([0, 0, 1, 3])  # An aborted transaction.
        made.target.append(MARKER)
    for log, cleans in zip((made.source, made.target), made.cleans, strict=True):
        if cleans:
            clean(rng, log, rng.choice([log.end // 2, log.end - 1]), set(written[:copied]))
    return made


def copies(
    rng: random.Random, made: Drawn, written: list[Rec], lost: set[int], *, alike: bool
) -> list[Rec]:
    """Return the records of the target: those *written* that were copied and not *lost*, and others behind them."""
    target = [each for at, each in enumerate(written) if at not in lost]
    if alike and target and made.is_healthy and rng.random() < 0.5:
        damage(rng, made, target)
    elif made.repeated:
        target += target[-made.repeated :]
    return [*target, *(Rec(b"stranger", b"%d" % n, n) for n in range(made.strangers))]


def damage(rng: random.Random, made: Drawn, target: list[Rec]) -> None:
    """Change the values of the last copies in *target*, and maybe repeat the copies before them."""
    made.damaged = rng.randrange(1, min(len(target), 4) + 1)
    intact = target[: -made.damaged]
    made.repeated = min(len(intact), rng.choice([0, 0, 1, 3]))
    last = [
        each._replace(value=b"damaged %d" % n) for n, each in enumerate(target[-made.damaged :])
    ]
    target[:] = [*intact, *intact[len(intact) - made.repeated :], *last]


def clean(rng: random.Random, log: Log, below: int, copied: set[Rec]) -> None:
    """Compact the records below *below*, only among themselves; tombstones stay until they were *copied*."""
    last = {
        each.key: at for at, each in sorted(log.records.items()) if at < below and not each.control
    }
    drops_tombstones = rng.random() < 0.5
    for at, each in list(log.records.items()):
        if at >= below or each.control:
            continue
        if at < last[each.key] or (each.value is None and drops_tombstones and each in copied):
            del log.records[at]
