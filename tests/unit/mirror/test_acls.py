"""kmirror copies no ACLs, and states which ones of the source that concerns."""

from __future__ import annotations

import pytest

from kclient.admin.acls import AclOperation, AclPermission, PatternType, TopicAcl
from mirrormaker.acls import covers, not_copied, not_visible


def acl(
    name: str,
    pattern: int = PatternType.LITERAL,
    operation: int = AclOperation.READ,
    permission: int = AclPermission.ALLOW,
) -> TopicAcl:
    return TopicAcl(name, pattern, "User:alice", "*", operation, permission)


@pytest.mark.parametrize(
    ("one", "topics"),
    [
        (acl("orders"), {"orders"}),
        (acl("orders", PatternType.PREFIXED), {"orders", "orders-eu"}),
        (acl("*"), {"orders", "orders-eu", "payments"}),
        (acl("*", PatternType.PREFIXED), set()),
        (acl("order"), set()),
    ],
)
def test_an_acl_is_about_the_topics_of_its_pattern(one: TopicAcl, topics: set[str]) -> None:
    every = ("orders", "orders-eu", "payments")
    assert {topic for topic in every if covers(one, topic)} == topics


def test_acls_about_mirrored_topics_are_named_and_the_others_are_not() -> None:
    found = [acl("orders"), acl("pay", PatternType.PREFIXED), acl("unrelated")]
    assert not_copied(found, ["orders", "payments", "third"]) == (
        "the source has 2 about 2 of 3 mirrored topics, and kmirror copies none: "
        "orders: allow READ to User:alice from *, pay*: allow READ to User:alice from *"
    )
    assert not_copied(found, ["third"]) == ""
    assert not_copied([], ["orders"]) == ""


def test_many_acls_are_counted_and_the_first_are_shown() -> None:
    found = [acl("orders", operation=n, permission=AclPermission.DENY) for n in (2, 4, 8, 99)]
    text = not_copied(found, ["orders"])
    assert text.endswith("orders: deny DESCRIBE to User:alice from *, and 1 more")
    assert "orders: deny (99) to" in not_copied(found[3:], ["orders"])


def test_wanted_topics_that_only_acls_name_are_not_visible() -> None:
    found = [acl("orders"), acl("hidden"), acl("*"), acl("other"), acl("pre", PatternType.PREFIXED)]
    text = not_visible(found, lambda name: name != "other", {"orders": 1})
    assert text.startswith("1 topics have ACLs and are not listed by the source: hidden. Either")
    assert not_visible(found, lambda name: name == "orders", {"orders": 1}) == ""
