"""The first exchange on a connection: the broker's APIs and their version ranges (KIP-511)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from twisted.internet.defer import Deferred

from kclient.errors import Address, Cause, ConnectError, ConnectionClosed, KafkaTimeoutError
from kclient.wire.errors import ErrorCode, KafkaError, MalformedMessage, for_code
from kclient.wire.schema.api_versions import ApiVersionsRequest
from kclient.wire.versions import ApiKey, VersionRange

SOFTWARE_NAME = "kclient"
SOFTWARE_VERSION = "0.1.0"


class RequestSender(Protocol):
    """What the handshake needs of a connection."""

    address: Address
    api_versions: Mapping[int, VersionRange]
    features: Mapping[str, VersionRange]

    def request(
        self, api_key: int, version: int | None, message: Any, *, timeout: float | None = None
    ) -> Deferred[Any]:
        """Send a request; fire with the response."""

    def close(self, reason: KafkaError | None = None) -> None:
        """Close the connection."""


async def fetch_api_versions(connection: RequestSender, timeout: float) -> None:
    """Request the broker's ApiVersions; close the connection and raise `ConnectError` without a valid response."""
    address = connection.address
    request = ApiVersionsRequest(
        client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION
    )
    try:
        response = await connection.request(ApiKey.API_VERSIONS, 3, request, timeout=timeout)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = await connection.request(ApiKey.API_VERSIONS, 0, request, timeout=timeout)
        if response.error_code:
            connection.close()
            detail = f"to ApiVersions: {for_code(response.error_code).code.name}"
            raise ConnectError(address, Cause.ERROR, detail)
    except ConnectError:
        raise
    except ConnectionClosed as problem:
        detail = "before its ApiVersions response"
        raise ConnectError(address, Cause.CLOSED, detail) from problem
    except KafkaTimeoutError as problem:
        detail = (
            f"it accepted the connection and did not answer ApiVersions in {timeout:g} s: "
            "a broker that hangs, a TLS port, or not a Kafka port"
        )
        raise ConnectError(address, Cause.TIMEOUT, detail) from problem
    except MalformedMessage as problem:
        connection.close()
        raise ConnectError(address, Cause.NOT_KAFKA, problem.message) from problem
    except BaseException:
        connection.close()
        raise
    connection.api_versions = {
        api.api_key: VersionRange(api.min_version, api.max_version) for api in response.api_keys
    }
    connection.features = {
        feature.name: VersionRange(feature.min_version, feature.max_version)
        for feature in response.supported_features
    }
