"""Detects when no step finishes although all processes are alive, because of a deadlock or code in the model that does
not return.

The workers' heartbeats are enough to detect this. Each heartbeat reports what the worker is doing, and which step it
finished last. Only time in steps counts. While a worker starts, saves, validates or changes its plan, no time is
counted for any worker.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from parallax_runner.launch.blame.first_death import Member
from parallax_runner.launch.control.activity import Activity
from parallax_runner.launch.watch.whereabouts import SESSION_RUN, ranges

# A notice is due after MEDIAN_STEPS times the median step time, but not before LEAST_SECS seconds.
MEDIAN_STEPS = 10.0
LEAST_SECS = 30.0
# The median step time of a worker is computed over at most this many of its latest steps.
REMEMBERED = 50
# A worker hangs alone if another worker is at least this many steps ahead. In synchronous training, no worker is more
# than one step ahead.
STEPS_AHEAD = 3


@dataclass
class _Pace:
    """The progress of one worker. `idle_secs` is the counted time since its last step finished. `starts` is True until
    the first step of this attempt, or of a new plan, has finished."""

    step: int | None = None
    idle_secs: float = 0.0
    starts: bool = True
    step_secs: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def pass_time(self, step: int | None, counted_secs: float) -> None:
        """Records that `step` is now the last finished step, after `counted_secs` more seconds."""
        self.idle_secs += counted_secs
        if step is not None and step != self.step:
            self._end(step)

    def _end(self, step: int) -> None:
        passed = 1 if self.step is None else max(1, step - self.step)
        self.step_secs.append(self.idle_secs / passed)
        self.step, self.idle_secs, self.starts = step, 0.0, False

    def patience_secs(self, start_secs: float) -> float:
        """Returns the number of seconds that the current step may take before a notice is due. For the first step, this
        is `start_secs`."""
        if self.starts:
            return start_secs
        return max(LEAST_SECS, MEDIAN_STEPS * statistics.median(self.step_secs))


class StallWatch:
    """Watches the workers of one attempt. The first step, which includes compilation and warm-up, may take `start_secs`
    seconds.

    After `timeout_secs` seconds without a finished step, the attempt ends. If `timeout_secs` is None, a stall never
    ends the attempt.
    """

    def __init__(self, *, start_secs: float, timeout_secs: float | None) -> None:
        self._start_secs, self._timeout_secs = start_secs, timeout_secs
        self._paces: dict[int, _Pace] = {}
        self._noticed_secs = 0.0
        self._alone: dict[int, int | None] = {}

    def look(self, workers: Iterable[Member], passed_secs: float) -> None:
        """Records what the workers report now, `passed_secs` seconds after the last call."""
        active = [one for one in workers if _is_active(one)]
        self._paces = {one.index: self._paces.get(one.index, _Pace()) for one in active}
        counts = any(one.doing.is_in_step for one in active) and all(_may_wait(one.doing) for one in active)
        for one in active:
            self._paces[one.index].pass_time(one.step, passed_secs if counts else 0.0)

    def begin_again(self) -> None:
        """Resets the step times when the plan changes, because the next step includes compilation and warm-up again."""
        for pace in self._paces.values():
            pace.starts = True
            pace.step_secs.clear()

    @property
    def idle_secs(self) -> float:
        """The number of seconds without a finished step on any worker."""
        return min((pace.idle_secs for pace in self._paces.values()), default=0.0)

    @property
    def is_over(self) -> bool:
        """Whether the timeout has passed."""
        if self._timeout_secs is None or not self._paces:
            return False
        starts = any(pace.starts for pace in self._paces.values())
        return self.idle_secs >= max(self._timeout_secs, self._start_secs if starts else 0.0)

    @property
    def is_due(self) -> bool:
        """Whether there is something to report: no step finishes, steps finish again, or a worker hangs alone."""
        if self.is_over or (self._noticed_secs and self.idle_secs < self._noticed_secs):
            return True
        return self._is_long() or bool(self._hang_alone())

    def news(self, workers: Sequence[Member], *, together: bool) -> str | None:
        """Returns a sentence that reports the news. Returns None if there is no news, for example because a step has
        finished since the caller read `is_due`. `together` means that each step needs all workers."""
        idle_secs, before_secs = self.idle_secs, self._noticed_secs
        active = [one for one in workers if one.index in self._paces]
        if idle_secs < before_secs and not self.is_over:
            self._noticed_secs = 0.0
            return f"steps are finishing again, after more than {before_secs:.0f} s without one"
        if self.is_over or self._is_long():
            self._noticed_secs = idle_secs
            return f"no step for {idle_secs:.0f} s; {describe_stall(active, together=together)}"
        alone = self._hang_alone()
        return self._news_of_alone(alone, active) if alone else None

    def _news_of_alone(self, alone: Sequence[int], active: Sequence[Member]) -> str:
        """Returns the sentence about the workers `alone`, which hang while the others continue."""
        self._alone |= {index: self._paces[index].step for index in alone}
        stuck = [one for one in active if one.index in alone]
        secs = min(self._paces[index].idle_secs for index in alone)
        stall = describe_stall(stuck, together=False)
        return f"{_names(alone)}: no step for {secs:.0f} s; {stall}; the others are making progress"

    def culprit(self, workers: Sequence[Member], *, together: bool) -> Member | None:
        """Returns the worker that all other workers wait for, or None if they do not wait for exactly one worker."""
        active = [one for one in workers if one.index in self._paces]
        held_up = _held_up(active, together=together)
        return held_up[0] if len(held_up) == 1 < len(active) else None

    def _is_long(self) -> bool:
        """Returns whether a notice is due. After a notice, the next notice is due when the idle time has doubled."""
        if not self._paces:
            return False
        patience_secs = max(pace.patience_secs(self._start_secs) for pace in self._paces.values())
        return self.idle_secs >= max(patience_secs, 2 * self._noticed_secs)

    def _hang_alone(self) -> list[int]:
        """Returns the workers that have not finished a step for a long time while other workers continue. A worker is
        reported only once per step."""
        furthest = max((pace.step or 0 for pace in self._paces.values()), default=0)
        return [
            index
            for index, pace in sorted(self._paces.items())
            if pace.idle_secs >= pace.patience_secs(self._start_secs)
            and furthest >= (pace.step or 0) + STEPS_AHEAD
            and self.idle_secs < LEAST_SECS / 2
            and (index not in self._alone or self._alone[index] != pace.step)
        ]


def describe_stall(workers: Sequence[Member], *, together: bool) -> str:
    """Returns a description such as "worker 1 is in step 50 (sleep_long in models.py:12), worker 0 is waiting for it".
    The description is a guess, based on the reports of the workers."""
    held_up = _held_up(workers, together=together)
    alike: dict[tuple[str, bool], list[int]] = {}
    for one in held_up:
        alike.setdefault((_standing(one), _answers(one)), []).append(one.index)
    parts = []
    for (what, answers), indices in alike.items():
        parts.append(f"{_who_are(indices)} {what}{'' if answers else ' and not responding'}")
    waiting = [one for one in workers if one not in held_up]
    if waiting:
        them = "it" if len(held_up) == 1 else "them"
        parts.append(f"{_who_are([one.index for one in waiting])} waiting for {them}{_in_exchanges(waiting)}")
    return ", ".join(parts)


def _in_exchanges(waiting: Sequence[Member]) -> str:
    """Returns the names of the exchanges in which these workers wait, such as " in the exchange «sum»", or ""."""
    names = dict.fromkeys(one.awaited.exchange for one in waiting if one.awaited.exchange is not None)
    if not names:
        return ""
    shown = ", ".join(f"«{name}»" for name in names)
    return f" in the exchange{'s' if len(names) > 1 else ''} {shown}"


def _held_up(workers: Sequence[Member], *, together: bool) -> list[Member]:
    """Returns the workers that the other workers seem to wait for, or all workers if that cannot be determined."""
    busy = [one for one in workers if not one.doing.waits] or list(workers)
    if not together:
        return busy
    awaited = _awaited(workers)
    if awaited:
        return awaited
    in_script = [one for one in busy if one.doing.is_in_script]
    return in_script or _furthest_behind(busy)


def _awaited(workers: Sequence[Member]) -> list[Member]:
    """Returns the workers that exchanges of other workers wait for. Leaves out a worker that itself waits for another
    one, unless all do."""
    ranks = {rank for one in workers for rank in one.awaited.ranks}
    awaited = [one for one in workers if one.index in ranks]
    return [one for one in awaited if not one.awaited.ranks] or awaited


def _furthest_behind(workers: Sequence[Member]) -> list[Member]:
    """Returns the workers in the earliest step. If possible, returns only those that do not report where they are, or
    else only those that do more than wait for TensorFlow."""
    first = min((_number(one) for one in workers), default=0)
    behind = [one for one in workers if _number(one) == first]
    silent = [one for one in behind if one.where is None]
    active = [one for one in behind if not _only_waits(one)]
    return silent or active or behind


def _is_active(one: Member) -> bool:
    return one.connected and not one.done and one.lost_secs is None


def _only_waits(one: Member) -> bool:
    """Returns whether the worker is waiting for TensorFlow, and TensorFlow is not running a Python function there."""
    return one.inside is None and one.where is not None and one.where.call == SESSION_RUN


def _answers(one: Member) -> bool:
    return one.inside is not None or one.where is not None


def _standing(one: Member) -> str:
    place = one.inside
    if place is None and one.where is not None and not _only_waits(one):
        place = str(one.where)
    if place is None and one.awaited.exchange is not None:
        place = f"in the exchange «{one.awaited.exchange}»"
    detail = f" ({place})" if place else ""
    return f"in {one.doing}{detail}" if one.doing.is_place else f"{one.doing}{detail}"


def _number(one: Member) -> int:
    return one.doing.step or 0 if one.doing.is_in_step else 0


def _may_wait(doing: Activity) -> bool:
    return doing.is_in_step or doing.waits or doing.is_in_script


def _who_are(indices: Sequence[int]) -> str:
    """Returns the workers and their verb, such as "workers 0–1 are"."""
    return f"{_names(indices)} {'is' if len(indices) == 1 else 'are'}"


def _names(indices: Sequence[int]) -> str:
    return f"worker{'s' if len(indices) > 1 else ''} {ranges(indices)}"
