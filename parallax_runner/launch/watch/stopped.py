"""Notices stopped processes that send no signs of life: mpirun, remote shells, and all that have no connection yet."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import psutil

from parallax_runner.launch.blame.first_death import Member
from parallax_runner.launch.watch.silence import SILENCE_SHARE, STOPPED

LOOK_SECS = 1.0


class StoppedWatch:
    """Over the processes that the driver has started, by their states. A stopped one is lost after most of
    `hang_timeout_secs`, as one that is silent. `rank_variable` tells of a worker without a connection which it is."""

    def __init__(self, hang_timeout_secs: float, rank_variable: str) -> None:
        self._hang_timeout_secs = hang_timeout_secs
        self._rank_variable = rank_variable
        self._passed_secs = 0.0
        self._stopped_secs: dict[int, float] = {}

    def look(self, started: Iterable[tuple[int, Sequence[Member]]], passed_secs: float) -> None:
        """`started` has the pid of each process, and the members that end with it, the last of which is itself."""
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
        """The process itself, and what it has started, as far as they are stopped and cannot say so themselves; each
        with who of the members it is, and a sentence of how it is stopped."""
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
                    rank = child.environ().get(self._rank_variable, "")
                    if rank.isdecimal() and int(rank) < len(others):
                        yield child, others[int(rank)], f"the process {how}"
                    else:
                        yield child, itself, f"{child.name()} (pid {child.pid}), which it has started, {how}"
        except psutil.Error:
            # Gone meanwhile: its exit status tells.
            return
