"""Determines which of the user's Slurm jobs have not ended, and cancels jobs. Uses `squeue`, which does not need
Slurm's accounting."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from functools import cached_property

# Slurm's own default of MaxArraySize.
DEFAULT_ARRAY_SIZE = 1001
QUEUE = ("squeue", "--me", "--array", "--noheader", "--format=%i")
ANSWER_SECS = 60.0


class Queue:
    """The user's jobs in Slurm's queue. The queue is read once, on first use."""

    def may_have(self, job: str) -> bool:
        """Returns whether a job such as `12` or `12_3` is waiting or running.

        Also returns True if `squeue` does not answer, for example while Slurm's controller restarts.
        """
        return self._jobs is None or job in self._jobs

    @cached_property
    def _jobs(self) -> frozenset[str] | None:
        try:
            done = subprocess.run(QUEUE, capture_output=True, text=True, timeout=ANSWER_SECS)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return None if done.returncode else frozenset(done.stdout.split())


def most_in_array() -> int:
    """Returns the largest number of jobs that a job array of this Slurm can have, at least 1."""
    try:
        argv = ["scontrol", "show", "config"]
        shown = subprocess.run(argv, capture_output=True, text=True, timeout=ANSWER_SECS).stdout
    except (OSError, subprocess.TimeoutExpired):
        return DEFAULT_ARRAY_SIZE
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", shown, re.MULTILINE)
    # Indexes begin at 0 and are below MaxArraySize. If it is 0, Slurm accepts no array, only single jobs.
    return DEFAULT_ARRAY_SIZE if found is None else max(1, int(found[1]))


def cancel(jobs: Iterable[str]) -> None:
    """Cancels jobs. A running job gets SIGTERM and can save a checkpoint."""
    if words := list(jobs):
        subprocess.run(["scancel", *words], capture_output=True)
