"""A worker: one client after another, each a process of the history, sends and polls until it is stopped.

A client runs for about thirty seconds and is then torn down as a crash: requests without a response stay unknown, and
later callbacks are ignored. Its successor reads on from a little before the place that the worker knows of,
or from the beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.chaos.client import Client, ClientLost, Ended, Positions
from tests.chaos.client_thread import ClientThread
from tests.chaos.recorder import Recorder
from tests.checker.history import Event

LIFETIME = 30.0
REWIND = 200
ASSIGNS = 1 / 64
FROM_BEGINNING = 0.1
"""How likely an assigned key is read again from its beginning. Over an hour that is more than all the rest."""


class Worker(ClientThread):
    """Sends and polls about *rate* times a second; it reads the share *from_beginning* of its keys from the start."""

    def __init__(
        self,
        name: str,
        make_client: Callable[[], Client],
        keys: Sequence[str],
        recorder: Recorder,
        *,
        seed: int,
        rate: float,
        from_beginning: float = FROM_BEGINNING,
    ) -> None:
        super().__init__(name, recorder, seed=seed)
        self._make_client = make_client
        self._keys = list(keys)
        self._rate = rate
        self._from_beginning = from_beginning
        self._known: Positions = dict.fromkeys(keys, 0)

    def run_client(self) -> None:
        """Use one client until it is to crash."""
        _ClientRun(self).run()


class _ClientRun:
    """One client's time."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.recorder = worker._recorder
        self.chance = worker._chance
        self.p = self.recorder.new_process()
        self.until = time.monotonic() + 5 + self.chance.expovariate(1 / LIFETIME)
        self.over = False

    def run(self) -> None:
        """Make a client, use it, tear it down."""
        try:
            client = self.worker._make_client()
        except Exception as error:  # for example, no broker answers: nothing was done
            self.recorder.event(self.p, "info", "crash", None, err=repr(error))
            time.sleep(0.5)
            return
        try:
            self._assign(client, self.worker._keys)
            while not self.worker._ending.is_set() and time.monotonic() < self.until:
                self._step(client)
            if self.worker._ending.is_set():
                client.flush(15)
        except ClientLost as error:
            self.recorder.event(self.p, "info", "crash", None, err=str(error))
        finally:
            self.over = True
            self.recorder.event(self.p, "info", "crash")
            client.close()

    def _step(self, client: Client) -> None:
        began = time.monotonic()
        draw = self.chance.random()
        if draw < ASSIGNS:
            some = self.chance.sample(self.worker._keys, self.chance.randint(1, len(self.worker._keys)))  # fmt: skip
            self._assign(client, some)
        elif draw < 0.6:
            self._send(client)
        else:
            self._poll(client)
        pause = self.chance.uniform(0.5, 1.5) / self.worker._rate - (time.monotonic() - began)
        if pause > 0:
            time.sleep(pause)

    def _send(self, client: Client) -> None:
        key = self.chance.choice(self.worker._keys)
        values = [
            self.recorder.new_value() for _ in range(self.chance.randint(1, client.most_values))
        ]
        sends = [["send", key, [None, value]] for value in values]
        begun = self.recorder.event(self.p, "invoke", "send", sends, **client.send_meta)
        client.send(key, values, lambda ended: self._sent(begun, key, values, ended))

    def _sent(self, begun: Event, key: str, values: Sequence[int], ended: Ended) -> None:
        if self.over:
            return
        sends = [
            ["send", key, [None if ended.offset is None else ended.offset + n, value]]
            for n, value in enumerate(values)
        ]
        meta = {} if ended.broker is None else {"broker": ended.broker}
        self.recorder.event(
            self.p, ended.outcome.value, "send", sends, err=ended.err, op=begun.i, **meta
        )

    def _poll(self, client: Client) -> None:
        found = client.poll(0.05)
        if not found:
            return
        known = self.worker._known
        behind = any(records[-1][0] < known[key] for key, records in found.items())
        self.recorder.event(self.p, "ok", "poll", [["poll", found]], catching_up=behind)
        for key, records in found.items():
            known[key] = max(known[key], records[-1][0] + 1)

    def _assign(self, client: Client, keys: Sequence[str]) -> None:
        positions = {
            key: 0
            if self.chance.random() < self.worker._from_beginning
            else max(0, self.worker._known[key] - REWIND)
            for key in keys
        }
        client.assign(positions)
        self.recorder.event(self.p, "ok", "assign", list(keys))
        self.recorder.event(self.p, "ok", "seek", positions)
