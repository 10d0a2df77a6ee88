"""Shows the progress of a run as a live bar on a terminal, or as plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

MAX_METRICS = 3  # per line


@dataclass(frozen=True)
class Standing:
    """The progress of a run: `step` of `steps` steps are complete. `steps` is None if the total is unknown.

    Rates are totals over all ranks, and None while they are unknown. `metrics` contains the values of all metrics
    except the loss, by name. `vocabulary` says how full the vocabularies that grow are, if there are any.
    """

    step: int
    steps: int | None
    loss: float | None = None
    steps_per_sec: float | None = None
    words_per_sec: float | None = None
    examples_per_sec: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    vocabulary: str = ""

    @property
    def left_secs(self) -> float | None:
        """The estimated seconds until the last step at the current rate, or None if the rate or the total is
        unknown."""
        if not self.steps_per_sec or self.steps is None:
            return None
        return max(0, self.steps - self.step) / self.steps_per_sec


class ProgressDisplay:
    """Shows a progress bar on a terminal. Elsewhere, prints a line every `log_every` steps and at the last step. Use as
    a context manager.

    Other output to `sys.stdout` or `sys.stderr` appears above the bar. `clock` returns seconds.
    """

    def __init__(
        self,
        *,
        steps: int | None,
        log_every: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream or sys.stderr
        self._log_every = log_every
        self._clock = clock
        self._written_step: int | None = None
        self._reported = Standing(0, steps)
        self._reported_secs = clock()
        self._phases: list[str] = []
        self._bar: Progress | None = None
        console = Console(file=self._stream)
        if console.is_terminal:
            # On a narrow terminal, the bar is shortened, but the step number is not.
            step = MofNCompleteColumn(table_column=Column(no_wrap=True))
            columns = (TextColumn("step"), step, BarColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("starting", total=steps)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, standing: Standing) -> None:
        """Shows new progress. Without a terminal, prints a line only if a line is due."""
        self._reported, self._reported_secs = standing, self._clock()
        if self._bar is not None:
            self._show(standing)
        elif self._is_due(standing):
            self._written_step = standing.step
            print(format_line(standing), file=self._stream, flush=True)

    def say(self, line: str) -> None:
        """Prints a line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)

    def show_phase(self, phase: str) -> None:
        """Shows a phase of the startup, such as `building the graph`, in the bar. Without a bar, prints each phase only
        once, even if the run restarts."""
        if self._bar is not None:
            if self._reported.loss is None:
                self._bar.update(self._task, description=phase, refresh=True)
        elif phase not in self._phases:
            self._phases.append(phase)
            self.say(phase)

    def restart(self) -> None:
        """Resets the display because all ranks start again from an earlier step. Steps already shown are shown
        again."""
        self._written_step = None
        self._reported, self._reported_secs = Standing(0, self._reported.steps), self._clock()
        if self._bar is not None:
            self._show(self._reported)

    def advance(self, step: int) -> None:
        """Moves the bar to `step`, whose loss has not been reported yet. Does nothing if there is no bar."""
        if self._bar is not None and step > self._reported.step:
            self._show(_further(self._reported, step, self._clock() - self._reported_secs))

    def _show(self, standing: Standing) -> None:
        assert self._bar is not None
        self._bar.update(self._task, completed=standing.step, description=format_rates(standing) or "starting")

    def _is_due(self, standing: Standing) -> bool:
        if standing.step == self._written_step:
            return False
        # Reports may skip steps, so a line is due as soon as a multiple of log_every has been reached or passed since
        # the last line.
        before = self._written_step or 0
        if standing.steps is not None and standing.step >= standing.steps:
            return True
        return standing.step // self._log_every > before // self._log_every


def _further(reported: Standing, step: int, secs: float) -> Standing:
    """Extrapolates `reported` to `step`, which was reached `secs` seconds later. The rates are computed from the time
    since the report, and the loss is unchanged."""
    if not reported.steps_per_sec or secs <= 0:
        return replace(reported, step=step)
    steps_per_sec = (step - reported.step) / secs
    change = steps_per_sec / reported.steps_per_sec
    words, examples = reported.words_per_sec, reported.examples_per_sec
    return replace(
        reported,
        step=step,
        steps_per_sec=steps_per_sec,
        words_per_sec=None if words is None else words * change,
        examples_per_sec=None if examples is None else examples * change,
    )


def format_line(standing: Standing) -> str:
    """Formats a line such as `step 120/1000  loss 5.4321  12,345 words/s  1:23 left`."""
    of = "" if standing.steps is None else f"/{standing.steps}"
    return f"step {standing.step}{of}  {format_rates(standing)}".rstrip()


def format_rates(standing: Standing) -> str:
    """Formats the loss, the first few metrics, the vocabularies that grow, the speed and the time left. Omits values
    that are unknown.

    The speed is in words per second if this rate is known, else in examples per second, else in steps per second.
    """
    parts = []
    if standing.loss is not None:
        parts.append(f"loss {standing.loss:.4f}")
    parts += [f"{name} {value:.4f}" for name, value in list(standing.metrics.items())[:MAX_METRICS]]
    if standing.vocabulary:
        parts.append(standing.vocabulary)
    if standing.words_per_sec is not None:
        parts.append(f"{standing.words_per_sec:,.0f} words/s")
    elif standing.examples_per_sec is not None:
        parts.append(f"{standing.examples_per_sec:,.0f} examples/s")
    elif standing.steps_per_sec is not None:
        parts.append(f"{standing.steps_per_sec:,.3g} steps/s")
    if standing.left_secs is not None:
        parts.append(f"{format_duration(standing.left_secs)} left")
    return "  ".join(parts)


def format_validation(step: int, result: Mapping[str, float]) -> str:
    """Formats named values, such as `validation/loss`, as a line: `validation after step 200: loss 3.847, perplexity
    46.85`. The line of an evaluation of test examples begins with `test`."""
    values = ", ".join(f"{name.partition('/')[2]} {value:.4g}" for name, value in result.items())
    part = next(iter(result), "validation").partition("/")[0]
    return f"{part} after step {step}: {values}"


def format_duration(secs: float) -> str:
    """Formats a duration as `1:23`, or as `2:01:23` for an hour or more."""
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
