"""DescribeAcls (29), versions 1-3: SECURITY_DISABLED, as Kafka's brokers without an authorizer answer (KIP-140).

Versions 2 (flexible) and 3 (user resources) change nothing in that answer.

Differs from Kafka: there is no authorizer yet, so the answer is always SECURITY_DISABLED.
"""

from kbroker.apis.request import RequestContext
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.describe_acls import DescribeAclsRequest, DescribeAclsResponse

NO_AUTHORIZER = "No Authorizer is configured on the broker"
"""Kafka's text; tools print it."""


class DescribeAcls:
    """Answers DescribeAcls."""

    def __call__(
        self, context: RequestContext, request: DescribeAclsRequest
    ) -> DescribeAclsResponse:
        """Answer that there is no authorizer."""
        return DescribeAclsResponse(
            error_code=int(ErrorCode.SECURITY_DISABLED), error_message=NO_AUTHORIZER
        )
