"""Notices that a worker's script has ended while another worker waits for it in a step that needs all of them."""

from __future__ import annotations

import re

from parallax_runner.errors import TrainingError

# What a worker says that it is doing while it is in a step.
IN_STEP = re.compile(r"step (\d+)")


class Watch:
    """Over the workers of one attempt. Workers that need not wait for one another do not say that they leave."""

    def __init__(self) -> None:
        self._left: dict[int, int] = {}

    def on_leave(self, rank: int, step: int) -> None:
        """A worker has done `step` steps and takes part in no other."""
        self._left[rank] = step

    def on_alive(self, rank: int, doing: str) -> None:
        """What a worker is at. Raises TrainingError where that can never end."""
        in_step = IN_STEP.fullmatch(doing)
        if in_step is None or rank in self._left:
            return
        for other, last in self._left.items():
            if last < int(in_step[1]):
                raise TrainingError(
                    f"the script of worker {other} ended after step {last}, and worker {rank} waits for it in step "
                    f"{in_step[1]}: every worker must run the same number of steps. Repeat datasets that give one "
                    "worker fewer batches than another, and stop all workers at the same step; or train without "
                    "waiting, with run_option='PS' and sync=False"
                )
