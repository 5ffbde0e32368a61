"""DeleteAcls (31), versions 1-3: SECURITY_DISABLED for each filter, as Kafka's brokers without an authorizer (KIP-140).

Differs from Kafka: there is no authorizer yet, so the answer is always SECURITY_DISABLED.
"""

from kbroker.apis.api30_create_acls import NO_AUTHORIZER
from kbroker.apis.request import RequestContext
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


class DeleteAcls:
    """Answers DeleteAcls."""

    def __call__(self, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
        """Answer that there is no authorizer."""
        refused = DeleteAclsFilterResult(int(ErrorCode.SECURITY_DISABLED), NO_AUTHORIZER)
        return DeleteAclsResponse(filter_results=[refused] * len(request.filters))
