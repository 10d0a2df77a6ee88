"""Prints on the terminal which processes a run that is stopping still waits for, and prints a new line when the list
changes."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable

from parallax_runner.launch.blame.first_death import Member
from parallax_runner.launch.control.activity import Activity
from parallax_runner.launch.watch.whereabouts import ranges

MAX_NAMED = 4


def waiting_for(members: Iterable[Member]) -> str:
    """Returns a list such as "worker 1 (step 50), workers 0, 2–3 (saving step 50)". Members that are done or lost are
    omitted."""
    alike: defaultdict[tuple[str, Activity], list[int]] = defaultdict(list)
    for member in members:
        if not member.done and member.lost_secs is None:
            alike[member.role, member.doing].append(member.index)
    named = [
        f"{role}{'s' if len(indices) > 1 else ''} {ranges(indices)} ({doing})"
        for (role, doing), indices in alike.items()
    ]
    more = len(named) - MAX_NAMED
    return ", ".join(named[:MAX_NAMED]) + (f", and {more} more" if more > 0 else "")


class StopNotice:
    """Prints on the terminal, after a signal has arrived, what the run still waits for."""

    def __init__(self, signal_name: str) -> None:
        self._begin = f"{signal_name}: stopping"
        self._end = "; a second signal ends the run at once"
        self._shown = ""

    def show(self, waited_for: str) -> None:
        """Prints `waited_for`, unless it is empty or the same as in the last call."""
        if not waited_for or waited_for == self._shown:
            return
        self._shown = waited_for
        print(f"parallax_runner: {self._begin}: waiting for {waited_for}{self._end}", file=sys.stderr, flush=True)
        self._begin, self._end = "stopping", ""
