"""The interface by which the driver asks which workers and servers a run can have now (docs/design/0110)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from parallax_runner.config.worker_numbers import ClusterSize


class Membership(ABC):
    """Knows which processes or hosts there are. One object is used for all attempts of a run."""

    @abstractmethod
    def available(self, wait_secs: float, stopped: Callable[[], bool]) -> ClusterSize:
        """Returns the largest permitted size for which there are processes or hosts.

        Waits up to `wait_secs` for all of them, and longer for the smallest permitted size. Raises LaunchError if there
        are too few for it. Returns any size early once `stopped()` returns True.
        """

    @abstractmethod
    def has_more(self, running: ClusterSize) -> bool:
        """Returns whether there are now processes or hosts for a larger permitted size than `running`, which trains.
        Called every few seconds, so it must not wait."""

    def close(self) -> None:
        """Ends what `has_more` has begun."""
        return
