"""The faults that a test asks for in the requests of clients: what `KafkaCluster` offers for that."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from kbroker.testing.fault import Fault
from kbroker.testing.request_faults import PROGRAM
from kbroker.testing.request_faults.fault import Lost, RequestFault, api_of, code_for
from kbroker.testing.request_faults.plan import FaultPlan
from kclient.errors import KafkaError
from kclient.wire.versions import ApiKey


class RequestFaults(Fault):
    """A fault of requests that has begun."""

    def __init__(self, requests: ClientRequests, fault: RequestFault) -> None:
        self._requests = requests
        self.fault = fault
        """Which requests it is for, and what happens to them."""

    @property
    def count(self) -> int:
        """How many requests have had it, over all brokers."""
        return self._requests._opened().count(self.fault)

    def heal(self) -> None:
        """Let requests have it no more."""
        self._requests._heal_one(self)


class ClientRequests:
    """The requests of clients to the brokers of a cluster, with the faults that a test asks for.

    *path* is the file of their plan, while the cluster runs.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._plan: FaultPlan | None = None
        self._faults: list[RequestFaults] = []
        self._count = 0

    def open_plan(self) -> tuple[str, ...]:
        """Make the plan; return what Python runs as a broker with its faults (`Broker.program`)."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._plan = FaultPlan(self._path)
        return ("-m", PROGRAM, str(self._path))

    def close_plan(self) -> None:
        """Close the plan's file."""
        plan, self._plan = self._plan, None
        if plan is not None:
            plan.close()

    def fail_requests(
        self,
        api: str | ApiKey,
        error: str | int | type[KafkaError],
        *,
        times: int | None = None,
        broker: int | None = None,
        client_id: str | None = None,
        delay: float = 0.0,
    ) -> RequestFaults:
        """Answer requests of *api* with *error*, and do not handle them: ``("Produce", "NOT_LEADER_OR_FOLLOWER")``.

        *api* is Kafka's name, or ApiKey; *error* a name, a number or an exception class. *times*: only the next so many
        requests, over all brokers; several faults of one API come one after the other. *broker*: only of that broker.
        *client_id*: only of client ids that begin so. *delay*: so many seconds later. What `KafkaCluster` itself
        asks of brokers has no fault, and brokers' requests to each other have none. ValueError for an unknown name.
        """
        return self._begin(api, times, broker, client_id, delay, error=code_for(error))

    def delay_requests(
        self,
        api: str | ApiKey | None,
        seconds: float,
        *,
        times: int | None = None,
        broker: int | None = None,
        client_id: str | None = None,
    ) -> RequestFaults:
        """Handle requests of *api* so many seconds later; None is every API. Others as in `fail_requests`.

        Requests behind it on the same connection wait, too, as they do in Kafka. If the connection ends meanwhile, the
        request is not handled.
        """
        if not seconds > 0:
            raise ValueError(f"seconds={seconds!r}: a delay is longer than 0")
        return self._begin(api, times, broker, client_id, seconds)

    def lose_requests(
        self,
        api: str | ApiKey | None,
        *,
        times: int | None = None,
        broker: int | None = None,
        client_id: str | None = None,
        delay: float = 0.0,
    ) -> RequestFaults:
        """End the connection when a request of *api* arrives, and do not handle it. Others as in `fail_requests`."""
        return self._begin(api, times, broker, client_id, delay, lost="request")

    def lose_responses(
        self,
        api: str | ApiKey | None,
        *,
        times: int | None = None,
        broker: int | None = None,
        client_id: str | None = None,
        delay: float = 0.0,
    ) -> RequestFaults:
        """Handle requests of *api*, and end the connection in place of the response. Others as in `fail_requests`.

        The client cannot know whether its request was handled: an idempotent producer sends it again, another one may
        write its records twice.
        """
        return self._begin(api, times, broker, client_id, delay, lost="response")

    def _begin(
        self,
        api: str | ApiKey | None,
        times: int | None,
        broker: int | None,
        client_id: str | None,
        delay: float,
        *,
        error: int = 0,
        lost: Lost | None = None,
    ) -> RequestFaults:
        if times is not None and (not isinstance(times, int) or times < 1):
            raise ValueError(f"times={times!r}: 1 or more requests, or None for all")
        if not 0 <= delay < float("inf"):
            raise ValueError(f"delay={delay!r}: seconds, 0 or more")
        if broker is not None:
            self[broker]
        fault = RequestFault(
            number=self._count,
            api=None if api is None else int(api_of(api)),
            broker=broker,
            client_id=client_id,
            times=times,
            delay=delay,
            error=int(error),
            lost=lost,
        )
        self._count += 1
        begun = RequestFaults(self, fault)
        self._faults.append(begun)
        self._put()
        return begun

    def heal_requests(self) -> None:
        """End all faults of requests."""
        if self._faults:
            self._faults.clear()
            self._put()

    def _heal_one(self, faults: RequestFaults) -> None:
        if faults in self._faults:
            self._faults.remove(faults)
            self._put()

    def _put(self) -> None:
        self._opened().replace([each.fault for each in self._faults])

    def _opened(self) -> FaultPlan:
        if self._plan is None:
            raise RuntimeError("the cluster does not run: start it first")
        return self._plan

    @abstractmethod
    def __getitem__(self, broker_id: int) -> object:
        """Return a broker; LookupError if there is none with that id."""
