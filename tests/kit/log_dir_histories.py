"""A stand-in for the log directories of a broker that registers without any."""

from __future__ import annotations

from kbroker.common.log_dir_integrity import UNKNOWN_INTEGRITY, LogDirIntegrity


class NoHistory:
    """Log directories that vouch for nothing, and keep nothing of a registration."""

    def registering(self, _after: int) -> LogDirIntegrity:
        """Return the integrity of unknown directories."""
        return UNKNOWN_INTEGRITY

    def registered(self, _broker_epoch: int) -> None:
        """Keep nothing."""

    def refused(self) -> None:
        """Keep nothing."""
