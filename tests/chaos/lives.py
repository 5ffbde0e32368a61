"""A thread that lives one life after another, each a process of the history, until it is told to finish."""

from __future__ import annotations

import random
import threading

from tests.chaos.recorder import Recorder


class Lives(threading.Thread):
    """Calls `live` again and again. What it raises ends the thread and is its `problem`."""

    def __init__(self, name: str, recorder: Recorder, *, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self._recorder = recorder
        self._chance = random.Random(seed)
        self._ending = threading.Event()
        self.problem: BaseException | None = None

    def finish(self) -> None:
        """Begin no further life, and end this one in good order; the thread then ends."""
        self._ending.set()

    def run(self) -> None:
        """Live, and live again."""
        try:
            while not self._ending.is_set():
                self.live()
        except BaseException as problem:
            self.problem = problem

    def live(self) -> None:
        """Live once, until it is over or `_ending` is set."""
        raise NotImplementedError
