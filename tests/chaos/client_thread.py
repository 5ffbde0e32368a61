"""A thread that runs one client after another, each a process of the history, until it is asked to finish."""

from __future__ import annotations

import random
import threading

from tests.chaos.recorder import Recorder


class ClientThread(threading.Thread):
    """Calls `run_client` again and again. An exception ends the thread and is its `problem`."""

    def __init__(self, name: str, recorder: Recorder, *, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self._recorder = recorder
        self._chance = random.Random(seed)
        self._ending = threading.Event()
        self.problem: BaseException | None = None

    def finish(self) -> None:
        """Start no further client, and close this one in good order; the thread then ends."""
        self._ending.set()

    def run(self) -> None:
        """Run one client after another."""
        try:
            while not self._ending.is_set():
                self.run_client()
        except BaseException as problem:
            self.problem = problem

    def run_client(self) -> None:
        """Run one client, until it is over or `_ending` is set."""
        raise NotImplementedError
