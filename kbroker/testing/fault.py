"""What every fault that a test asks for has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Fault(ABC):
    """A fault that has begun; it ends with `heal`, or with the block of a `with`."""

    @abstractmethod
    def heal(self) -> None:
        """End it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.heal()
