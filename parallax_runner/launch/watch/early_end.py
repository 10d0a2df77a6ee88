"""Detects when a worker's script has ended while another worker waits for that worker in a step that needs all
workers."""

from __future__ import annotations

from parallax_runner.errors import TrainingError
from parallax_runner.launch.control.activity import Activity, Kind


class Watch:
    """Watches the workers of one attempt. Workers that do not wait for one another do not report the end of their
    script."""

    def __init__(self) -> None:
        self._left: dict[int, int] = {}

    def on_leave(self, rank: int, step: int) -> None:
        """Records that a worker has finished `step` steps and takes part in no further step."""
        self._left[rank] = step

    def on_alive(self, rank: int, doing: Activity) -> None:
        """Checks what a worker is doing. Raises TrainingError if the worker is in a step that can never finish."""
        if doing.kind is not Kind.STEP or doing.step is None or rank in self._left:
            return
        for other, last in self._left.items():
            if last < doing.step:
                raise TrainingError(
                    f"the script of worker {other} ended after step {last}, and worker {rank} is waiting for it in "
                    f"step {doing.step}: every worker must run the same number of steps. Repeat datasets that give one "
                    "worker fewer batches than another, and stop all workers at the same step; or train without "
                    "waiting, with run_option='PS' and sync=False"
                )
