"""Errors of transactions that older versions of an API do not have."""

from __future__ import annotations

from kclient.wire.error_codes import ErrorCode


def for_version(error: ErrorCode, api_version: int, knows_fenced: int) -> ErrorCode:
    """Return INVALID_PRODUCER_EPOCH for PRODUCER_FENCED in versions before *knows_fenced* (KIP-588)."""
    if error is ErrorCode.PRODUCER_FENCED and api_version < knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
