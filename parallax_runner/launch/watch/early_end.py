"""Detects when a worker's script has ended while another worker waits for that worker in a step that needs all
workers."""

from __future__ import annotations

import re

from parallax_runner.errors import TrainingError

# The activity that a worker reports while it is in a step.
IN_STEP = re.compile(r"step (\d+)")


class Watch:
    """Watches the workers of one attempt. Workers that do not wait for one another do not report the end of their
    script."""

    def __init__(self) -> None:
        self._left: dict[int, int] = {}

    def on_leave(self, rank: int, step: int) -> None:
        """Records that a worker has finished `step` steps and takes part in no further step."""
        self._left[rank] = step

    def on_alive(self, rank: int, doing: str) -> None:
        """Checks what a worker is doing. Raises TrainingError if the worker is in a step that can never finish."""
        in_step = IN_STEP.fullmatch(doing)
        if in_step is None or rank in self._left:
            return
        for other, last in self._left.items():
            if last < int(in_step[1]):
                raise TrainingError(
                    f"the script of worker {other} ended after step {last}, and worker {rank} is waiting for it in "
                    f"step {in_step[1]}: every worker must run the same number of steps. Repeat datasets that give one "
                    "worker fewer batches than another, and stop all workers at the same step; or train without "
                    "waiting, with run_option='PS' and sync=False"
                )
