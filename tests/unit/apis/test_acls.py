"""DescribeAcls, CreateAcls and DeleteAcls: a broker without an authorizer refuses them as Kafka's does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.apis.api29_describe_acls import DescribeAcls
from kbroker.apis.api30_create_acls import CreateAcls
from kbroker.apis.api31_delete_acls import DeleteAcls
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.create_acls import AclCreation, CreateAclsRequest
from kclient.wire.schema.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kclient.wire.schema.describe_acls import DescribeAclsRequest
from kclient.wire.versions import ApiKey
from tests.unit.apis.kit import ApiBroker, broker_in

VERSIONS = (1, 2, 3)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ApiBroker]:
    with broker_in(tmp_path) as broker:
        broker.serve(ApiKey.DESCRIBE_ACLS, DescribeAcls)
        broker.serve(ApiKey.CREATE_ACLS, CreateAcls)
        broker.serve(ApiKey.DELETE_ACLS, DeleteAcls)
        yield broker


@pytest.mark.parametrize("version", VERSIONS)
def test_acls_are_not_described_because_security_is_disabled(
    broker: ApiBroker, version: int
) -> None:
    answer = broker.ask(ApiKey.DESCRIBE_ACLS, version, DescribeAclsRequest(1, None, 1))
    assert answer.error_code == ErrorCode.SECURITY_DISABLED
    assert answer.error_message == "No Authorizer is configured on the broker"
    assert answer.resources == []


@pytest.mark.parametrize("version", VERSIONS)
def test_each_acl_to_be_created_is_refused(broker: ApiBroker, version: int) -> None:
    creations = [AclCreation(2, name, 3, "User:a", "*", 3, 3) for name in ("t", "u")]
    answer = broker.ask(ApiKey.CREATE_ACLS, version, CreateAclsRequest(creations))
    assert [(r.error_code, r.error_message) for r in answer.results] == [
        (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    ] * 2


@pytest.mark.parametrize("version", VERSIONS)
def test_each_filter_of_acls_to_be_deleted_is_refused(broker: ApiBroker, version: int) -> None:
    filters = [DeleteAclsFilter(2, "t", 3, None, None, 1, 1), DeleteAclsFilter(1, None, 1)]
    answer = broker.ask(ApiKey.DELETE_ACLS, version, DeleteAclsRequest(filters))
    assert [(r.error_code, r.matching_acls) for r in answer.filter_results] == [
        (ErrorCode.SECURITY_DISABLED, [])
    ] * 2
