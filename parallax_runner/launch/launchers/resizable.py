"""The interface of launchers whose runs can go on with another number of workers (docs/design/0104)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from parallax_runner.launch.launchers.launcher import Launcher


class ResizableLauncher(Launcher):
    """A launcher that can tell for how many workers there are processes or hosts."""

    changes_size: ClassVar[bool] = True

    @abstractmethod
    def available(self, numbers: Sequence[int], wait_secs: float, stopped: Callable[[], bool]) -> int:
        """Returns the largest of `numbers` (ascending) for which there are workers.

        Waits up to `wait_secs` for the largest number, and longer for the smallest. Raises LaunchError if there are not
        enough workers for the smallest number. Returns early once `stopped()` returns True.
        """

    @abstractmethod
    def has_more(self, numbers: Sequence[int], running: int) -> bool:
        """Returns whether there are now workers for one of `numbers` that is larger than `running`, the number of
        workers that run."""
