"""Detects stopped processes among the processes that send no heartbeats: mpirun, remote shells, and processes that have
not connected yet."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import psutil

from parallax_runner.launch.blame.first_death import Member
from parallax_runner.launch.watch.silence import SILENCE_SHARE, STOPPED

LOOK_SECS = 1.0


class StoppedWatch:
    """Watches the states of the processes that the driver started. Like a silent process, a stopped process is marked
    as lost after most of `hang_timeout_secs` has passed. A worker that has no connection is identified by its rank in
    the environment variable `rank_variable`."""

    def __init__(self, hang_timeout_secs: float, rank_variable: str) -> None:
        self._hang_timeout_secs = hang_timeout_secs
        self._rank_variable = rank_variable
        self._passed_secs = 0.0
        self._stopped_secs: dict[int, float] = {}

    def look(self, started: Iterable[tuple[int, Sequence[Member]]], passed_secs: float) -> None:
        """Checks all processes. `started` contains the pid of each process and the members that exit when that process
        exits. The last of these members is the process itself."""
        self._passed_secs += passed_secs
        if self._passed_secs < LOOK_SECS:
            return
        before, self._stopped_secs = self._stopped_secs, {}
        for process, member, what in (found for pid, members in started for found in self._stopped(pid, members)):
            secs = before.get(process.pid, 0.0) + self._passed_secs
            self._stopped_secs[process.pid] = secs
            if secs >= SILENCE_SHARE * self._hang_timeout_secs and member.lost_secs is None:
                member.pid = member.pid or process.pid
                member.verdict = (
                    f"frozen: {what} for {secs:.0f} s (train.hang_timeout_secs={self._hang_timeout_secs:g})"
                )
                member.lose(time.monotonic())
        self._passed_secs = 0.0

    def _stopped(self, pid: int, members: Sequence[Member]) -> Iterator[tuple[psutil.Process, Member, str]]:
        """Checks the process and its children. Yields each stopped process that has no connection, with its member and
        a clause that describes how the process is stopped."""
        *others, itself = members
        try:
            leader = psutil.Process(pid)
            if not itself.connected and (how := STOPPED.get(leader.status())):
                yield leader, itself, f"the process {how}"
            if not others:
                return
            connected = {one.pid for one in others if one.connected}
            for child in leader.children():
                if child.pid not in connected and (how := STOPPED.get(child.status())):
                    worker = self._worker_in(child, others)
                    if worker is None:
                        yield child, itself, f"{child.name()} (pid {child.pid}), its child process, {how}"
                    else:
                        yield child, worker, f"the process {how}"
        except psutil.Error:
            # The process has ended, and its exit status will show the reason.
            return

    def _worker_in(self, child: psutil.Process, workers: Sequence[Member]) -> Member | None:
        """Returns the worker whose rank is in the child's environment, or None if the child is not a worker."""
        rank = child.environ().get(self._rank_variable, "")
        if rank.isdecimal() and int(rank) < len(workers):
            return workers[int(rank)]
        return None
