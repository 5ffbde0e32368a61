"""Addresses that brokers advertise: a name that no resolver takes fails at once."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kclient.errors import Address, Cause, ConnectError
from kclient.net.connection import connect
from kclient.net.dial import resolve


@pytest.mark.parametrize("host", ["a..b", "", "a" * 64, "\u2024", "a\0b"])
def test_a_name_that_is_none_is_not_given_to_the_resolver(host: str) -> None:
    problem = resolve(Clock(), Address(host, 9092))
    problem.addErrback(lambda failure: failure.trap(ConnectError) and failure.value)
    assert problem.result.cause is Cause.DNS
    assert str(problem.result) == f"{host}:9092: name does not resolve (it is no valid host name)"


class NoAnswer(Clock):
    """A reactor with a resolver that does not answer."""

    nameResolver = property(lambda self: self)  # noqa: N815 (Twisted's name)

    def resolveHostName(self, *_: object) -> None:  # noqa: N802 (Twisted's name)
        pass


def test_a_resolver_without_an_answer_is_named_with_the_time() -> None:
    reactor = NoAnswer()
    problem = Deferred.fromCoroutine(connect(reactor, Address("a", 9092), connect_timeout=10.0))
    problem.addErrback(lambda failure: failure.trap(ConnectError) and failure.value)
    reactor.advance(10)
    assert str(problem.result) == "a:9092: name does not resolve (no answer in 10 s)"
