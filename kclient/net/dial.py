"""Connects to one address: resolves it, tries each IP address in turn, and reports the cause of a failure.

The transport is `kclient.net.transport`, which does not copy. With a reactor that is not POSIX (Twisted's in-memory
test reactors) ``connectTCP`` is used instead.
"""

from __future__ import annotations

from typing import Any, cast

from twisted.internet import error
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IAddress, IHostResolution
from twisted.internet.protocol import ClientFactory
from twisted.python.failure import Failure

from kclient.errors import Address, Cause, ConnectError
from kclient.host_names import is_host, is_ip_literal
from kclient.net.transport import PartsConnector


class _OneProtocol(ClientFactory):
    """A factory for one given protocol; it reports whether the connection was made."""

    noisy = False

    def __init__(self, protocol: Any, connected: Deferred[Any]) -> None:
        self._made = protocol
        self._connected: Deferred[Any] | None = connected

    def buildProtocol(self, addr: IAddress | None) -> Any:  # noqa: N802 (Twisted's name)
        """Return the protocol to the transport that connected."""
        waiting, self._connected = self._connected, None
        if waiting is not None:
            self._made.transport_ready = waiting
        return self._made

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:  # noqa: N802
        """Report that this IP address failed."""
        waiting, self._connected = self._connected, None
        if waiting is not None:
            waiting.errback(reason)


def resolve(reactor: Any, address: Address) -> Deferred[list[str]]:
    """Resolve *address* to IP addresses in the resolver's order; raise `ConnectError` if there are none."""
    if is_ip_literal(address.host):
        return succeed([address.host])
    # A zone, as in fe80::1%eth0, is the resolver's to read.
    if not is_host(address.host):
        return fail(ConnectError(address, Cause.DNS, "it is no valid host name"))
    found: list[str] = []
    done: Deferred[list[str]] = Deferred()

    class _ResolvedAddresses:
        """Collects the addresses of a name resolution."""

        def resolutionBegan(self, resolution: IHostResolution) -> None:  # noqa: N802
            """Nothing to do: results follow."""

        def addressResolved(self, resolved: IAddress) -> None:  # noqa: N802
            """Keep one address."""
            host = cast(Any, resolved).host
            if host not in found:
                found.append(host)

        def resolutionComplete(self) -> None:  # noqa: N802
            """Answer with all of them."""
            if done.called:
                return
            if found:
                done.callback(found)
            else:
                done.errback(ConnectError(address, Cause.DNS))

    try:
        reactor.nameResolver.resolveHostName(
            cast(Any, _ResolvedAddresses()), address.host, address.port
        )
    except Exception as problem:  # an invalid name, such as one with spaces
        return fail(ConnectError(address, Cause.DNS, str(problem)))
    return done


def explain(address: Address, problem: BaseException, timeout: float) -> ConnectError:
    """Convert Twisted's error of a failed connect into a `ConnectError` with its cause."""
    if isinstance(problem, ConnectError):
        return problem
    if isinstance(problem, error.ConnectionRefusedError):
        return ConnectError(address, Cause.REFUSED)
    if isinstance(problem, error.TimeoutError | error.TCPTimedOutError):
        return ConnectError(address, Cause.TIMEOUT, f"no answer in {timeout:g} s")
    if isinstance(problem, error.DNSLookupError):
        return ConnectError(address, Cause.DNS)
    return ConnectError(address, Cause.UNREACHABLE, str(problem) or type(problem).__name__)


def connect_to_ip(
    reactor: Any, ip: str, port: int, protocol: Any, *, timeout: float
) -> Deferred[Any]:
    """Connect *protocol* to one IP address; fires with the protocol once its transport is connected.

    The protocol fires its ``transport_ready`` Deferred in connectionMade.
    """
    connected: Deferred[Any] = Deferred()
    factory = _OneProtocol(protocol, connected)
    if hasattr(reactor, "addReader"):
        connector: Any = PartsConnector(ip, port, factory, timeout, None, reactor)
        connector.connect()
    else:
        connector = reactor.connectTCP(ip, port, factory, timeout)
    connected._canceller = lambda _: connector.disconnect()
    return connected
