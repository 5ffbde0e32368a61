"""CreateAcls (30), versions 1-3: SECURITY_DISABLED for each ACL, as Kafka's brokers without an authorizer (KIP-140).

Differs from Kafka: there is no authorizer yet, so the answer is always SECURITY_DISABLED.
"""

from kbroker.apis.request import RequestContext
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

NO_AUTHORIZER = "No Authorizer is configured."
"""Kafka's text; DescribeAcls has another."""


class CreateAcls:
    """Answers CreateAcls."""

    def __call__(self, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
        """Answer that there is no authorizer."""
        refused = AclCreationResult(int(ErrorCode.SECURITY_DISABLED), NO_AUTHORIZER)
        return CreateAclsResponse(results=[refused] * len(request.creations))
