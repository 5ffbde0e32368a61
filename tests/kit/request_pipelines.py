"""Request pipelines for tests: no client has a quota, and a large request gets its turn at once."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.apis.inter_broker_authorizer import InterBrokerAuthorizer
from kbroker.apis.pipeline import RequestPipeline
from kbroker.apis.request import HandlerFactory
from kbroker.common.turns import Turns, WithoutTurns
from kbroker.network.service import Peer
from kclient.wire.versions import ApiKey
from tests.kit.open_gates import OpenGates


class NoQuotas:
    """Stands for `ClientQuotaManager` where no client has a quota."""

    is_enabled = False

    def begin(self, _peer: Peer, _client_id: str, _size: int) -> None:
        """Measure nothing."""


def open_pipeline(
    handlers: Mapping[ApiKey, HandlerFactory],
    authorizer: InterBrokerAuthorizer,
    turns: Turns | None = None,
) -> RequestPipeline:
    """Return a pipeline with open gates; large requests wait for *turns*, if given."""
    return RequestPipeline(
        handlers,
        authorizer=authorizer,
        gates=OpenGates(),
        quotas=NoQuotas(),
        turns=turns or WithoutTurns(),
    )
