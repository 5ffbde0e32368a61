"""ApiVersions (api key 18), v0-4: which APIs and versions this broker serves.

v3 flexible body, client software name (KIP-511), features · v4 min feature version 0. The response header has no tagged
fields in any version. A version that is not served is answered in v0 with UNSUPPORTED_VERSION and the ranges, so that
the client can choose another one (KIP-511).

Differs from Kafka: the one feature is an extension of ours, the conditional append (kclient.wire.produce). A tagged
field of ours (10000, v3+) carries a broker's proof of which broker it is (`kbroker.security.core.broker_proof`). It
holds for the connection; a proof that does not hold here is answered with CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbroker.apis.inter_broker_authorizer import InterBrokerAuthorizer
from kbroker.apis.request import RequestContext
from kclient.wire.error_codes import ErrorCode
from kclient.wire.produce import CONDITIONAL_APPEND, CONDITIONAL_APPEND_VERSION
from kclient.wire.schema.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SupportedFeatureKey,
)
from kclient.wire.versions import ApiKey, VersionRange

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersions:
    """Lists the APIs and versions that are *served*, and passes the proofs of brokers to *authorizer*."""

    def __init__(
        self, served: Mapping[ApiKey, VersionRange], authorizer: InterBrokerAuthorizer
    ) -> None:
        self._ranges = [
            ApiVersion(api_key=int(api), min_version=versions.min, max_version=versions.max)
            for api, versions in sorted(served.items())
        ]
        self._authorizer = authorizer

    def unsupported_version(self) -> ApiVersionsResponse:
        """Return the response to a version that is not served."""
        code = int(ErrorCode.UNSUPPORTED_VERSION)
        return ApiVersionsResponse(error_code=code, api_keys=self._ranges)

    def __call__(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        """Answer; a client software name or version that is none is INVALID_REQUEST (KIP-511)."""
        if context.api_version >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name)
            and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            return ApiVersionsResponse(error_code=int(ErrorCode.INVALID_REQUEST))
        if request.broker_proof and not self._authorizer.authenticate(
            context.peer, request.broker_proof
        ):
            return ApiVersionsResponse(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        return ApiVersionsResponse(
            api_keys=self._ranges,
            supported_features=[
                SupportedFeatureKey(
                    CONDITIONAL_APPEND, CONDITIONAL_APPEND_VERSION, CONDITIONAL_APPEND_VERSION
                )
            ],
        )
