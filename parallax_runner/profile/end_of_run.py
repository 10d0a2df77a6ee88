"""Turns the ranks' RunMetadata into traces, tables and plots after the processes have ended. An error in this module
never makes a run fail."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Sequence
from pathlib import Path

from parallax_runner.config.schema import ProfileConfig
from parallax_runner.files.whole import write_whole
from parallax_runner.process.stage_times import stage
from parallax_runner.profile.heaviest import OpTotals
from parallax_runner.profile.run_metadata_files import (
    HEAVIEST_TABLE,
    HEAVIEST_TEXT,
    PLOT,
    SHARES,
    TRACE,
    run_metadata_files,
)
from parallax_runner.profile.shares import Part, StepShares, shares_of_step, total_by_rank
from parallax_runner.profile.text import one_line, write_text
from parallax_runner.profile.timeline import StepTimeline, read_timeline
from parallax_runner.profile.trace import writing_trace

log = logging.getLogger(__name__)


@stage("summarize the profile")
def summarize_profile(profile: ProfileConfig) -> str | None:
    """Summarizes the RunMetadata in the profile's folder, and returns one line with the result.

    Returns None if profiling is off. If the summaries cannot be written, the line contains the error.
    """
    if profile.name == "off":
        return None
    assert profile.dir is not None
    folder = Path(profile.dir)
    try:
        shares = write_summaries(folder)
    except Exception as error:  # a bad trace or a full disk must not make a successful run fail
        log.warning("the profile cannot be summarized: %s", error, exc_info=True)
        return f"the profile cannot be summarized: {type(error).__name__}: {error}"
    if not shares:
        return "profile: no step was profiled"
    steps = sorted({step for one in shares for step in one.steps})
    counted = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps"
    return f"profile of {counted}: {one_line(shares)}; {folder / TRACE} (opens in ui.perfetto.dev)"


def write_summaries(folder: Path) -> list[StepShares]:
    """Writes the summaries, and returns the shares of each rank over all its steps. Raises OSError if a file cannot be
    read or written.

    Reads the RunMetadata of all ranks one step at a time.
    """
    files = run_metadata_files(folder)
    if not files:
        return []
    shares: list[StepShares] = []
    totals = OpTotals()
    with writing_trace(folder / TRACE) as trace:
        for step, by_rank in files.items():
            timelines = _read(step, by_rank)
            if timelines:
                trace.add(timelines)
                shares += shares_of_step(timelines)
            for timeline in timelines:
                totals.add(timeline)
    ranks = total_by_rank(shares)
    if ranks:
        totals.write(folder / HEAVIEST_TABLE)
        _write_shares(folder / SHARES, shares)
        write_text(folder / HEAVIEST_TEXT, ranks, totals)
        _plot(ranks, folder / PLOT)
    return ranks


def _read(step: int, by_rank: dict[int, Path]) -> list[StepTimeline]:
    timelines = []
    for rank, path in by_rank.items():
        try:
            timelines.append(read_timeline(path, rank=rank, step=step))
        except ValueError as error:
            log.warning("one worker's step is missing from the profile: %s", error)
    return timelines


def _write_shares(path: Path, shares: Sequence[StepShares]) -> None:
    with io.StringIO(newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["step", "rank", "span_ms", *(f"{part.value}_ms" for part in Part), "communicating_ms", "hidden_ms"]
        )
        for one in shares:
            times = [one.span_ns, *(one.parts_ns[part] for part in Part), one.communication_ns, one.hidden_ns]
            table.writerow([one.steps[0], one.rank, *(f"{time_ns / 1e6:.6f}" for time_ns in times)])
        write_whole(path, file.getvalue())


def _plot(ranks: Sequence[StepShares], path: Path) -> None:
    from parallax_runner.profile.shares_plot import plot_shares

    try:
        plot_shares(ranks, path)
    except Exception as error:  # such as a broken font cache; the numbers are already written
        log.warning("the profile cannot be plotted: %s: %s", type(error).__name__, error)
