"""Which of a user's jobs Slurm has not ended yet, as `squeue` tells without accounting; and how to end them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from functools import cached_property

QUEUE = ("squeue", "--me", "--array", "--noheader", "--format=%i")
ANSWER_SECS = 60.0


class Queue:
    """Asks Slurm once, when the first answer is needed."""

    def may_have(self, job: str) -> bool:
        """Whether a job, `12` or `12_3`, waits or runs. True also where nobody can say that it has ended, as while the
        controller starts again, or on a machine without Slurm."""
        return self._jobs is None or job in self._jobs

    @cached_property
    def _jobs(self) -> frozenset[str] | None:
        try:
            done = subprocess.run(QUEUE, capture_output=True, text=True, timeout=ANSWER_SECS)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return None if done.returncode else frozenset(done.stdout.split())


def cancel(jobs: Iterable[str]) -> None:
    """Ends jobs: one that runs gets SIGTERM, and may save a checkpoint."""
    if words := list(jobs):
        subprocess.run(["scancel", *words], capture_output=True)
