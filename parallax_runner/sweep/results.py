"""Ranks the jobs of a sweep by their objectives, for the final table and `results.json`."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from parallax_runner.config.objective import Direction, Goal
from parallax_runner.config.trackers import RUN_ID_KEY
from parallax_runner.files.whole import write_whole
from parallax_runner.sweep.ledger import Account, Job
from parallax_runner.track.run_record import read_summary

FILE_NAME = "results.json"
NOT_RUN = "not run"


@dataclass(frozen=True)
class Result:
    """One job at the end of a sweep. `rank` counts from 1 and is None for a job that is not ranked."""

    rank: int | None
    job: str
    status: str  # finished, failed, interrupted, running or not run
    objective: float | None
    words_per_sec: float | None
    step_ms_p50: float | None
    steps: int | None
    run_dir: str
    overrides: tuple[str, ...]
    tracker_run_id: str | None = field(metadata={"key": RUN_ID_KEY})
    error: str | None
    objective_name: str | None
    direction: Direction = "minimize"
    examples_per_sec: float | None = None


def rank(account: Account, planned: Iterable[Job]) -> list[Result]:
    """Returns all jobs in the ledger and all planned jobs. Ranked jobs come first, from best to worst, and the other
    jobs follow. No job is ranked if the jobs' objectives have different names, such as a loss and a perplexity."""
    unranked = [_result(account, job) for job in _jobs(account, planned)]
    finished = [one for one in unranked if _has_result(one)]
    sign = -1 if direction_of(finished) == "maximize" else 1
    ranked = sorted(finished if len(_names_of(finished)) <= 1 else (), key=lambda one: _objective(one) * sign)
    others = [one for one in unranked if one not in ranked]
    return [_with_rank(one, number) for number, one in enumerate(ranked, start=1)] + others


def _jobs(account: Account, planned: Iterable[Job]) -> Iterable[Job]:
    """Returns the planned jobs and the jobs in the ledger, each once."""
    jobs = {job.name: job for job in planned}
    jobs |= {name: standing.job for name, standing in account.standings.items()}
    return jobs.values()


def _has_result(one: Result) -> bool:
    return one.status == "finished" and _is_number(one.objective)


def _objective(one: Result) -> float:
    return one.objective or 0.0


def save(results: Sequence[Result], sweep_dir: Path, status: str, *, means: Sequence[Mapping[str, Any]] = ()) -> Path:
    """Writes `results.json`. `means` are the means over jobs that repeat a training (repeats.py). NaN and infinite
    numbers become null."""
    path = sweep_dir / FILE_NAME
    name = name_of_objective(results)
    document = {
        "status": status,
        "objective": name,
        "direction": None if name is None else direction_of(results),
        "jobs": [_flat(one) for one in results],
        "means": [{key: _finite(value) for key, value in one.items()} for one in means],
    }
    write_whole(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
    return path


def table(results: Sequence[Result], sweep_dir: Path) -> Table:
    """Creates the final table."""
    unit = _unit_of_speed(results)
    # The table uses Text instead of str, because brackets in titles and paths must not be read as markup.
    shown = Table(title=Text(f"sweep {sweep_dir}"), title_justify="left")
    for heading, is_number in (
        ("rank", True),
        ("job", False),
        ("status", False),
        (heading_of_objective(results), True),
        (unit, True),
        ("step ms", True),
        ("run directory", False),
    ):
        shown.add_column(Text(heading), justify="right" if is_number else "left", overflow="fold")
    for one in results:
        shown.add_row(
            "" if one.rank is None else str(one.rank),
            Text(one.job),
            one.status,
            "" if one.objective is None else f"{one.objective:.5g}",
            "" if (speed := _speed(one, unit)) is None else f"{speed:,.0f}",
            "" if one.step_ms_p50 is None else f"{one.step_ms_p50:.1f}",
            Text(_below(one.run_dir, sweep_dir)),
        )
    return shown


def name_of_objective(results: Sequence[Result]) -> str | None:
    """Returns the name of the jobs' objective, such as `perplexity`, or None if the jobs have different objectives or
    no objective."""
    names = _names_of(results)
    return names.pop() if len(names) == 1 else None


def goal_of(results: Sequence[Result]) -> Goal | None:
    """Returns the goal that is used to compare the jobs, or None if the jobs have different objectives or no
    objective."""
    name = name_of_objective(results)
    return None if name is None else Goal(name, None, direction_of(results))


def heading_of_objective(results: Sequence[Result]) -> str:
    """Returns the objective's name and direction, such as `perplexity (minimize)`."""
    name = name_of_objective(results)
    return "objective" if name is None else f"{name} ({direction_of(results)})"


def direction_of(results: Iterable[Result]) -> Direction:
    """Returns whether smaller or larger objectives are better. Jobs with the same objective have the same direction."""
    return next((one.direction for one in results if one.objective_name is not None), "minimize")


def disagreement(results: Sequence[Result]) -> str | None:
    """If the jobs' objectives differ, returns a message that explains why no job has a rank. Otherwise returns None."""
    counts = Counter(one.objective_name for one in results if one.objective_name is not None)
    if len(counts) < 2:
        return None
    told = ", ".join(f"{name} ({'1 job' if count == 1 else f'{count} jobs'})" for name, count in counts.items())
    return f"the jobs are not ranked, because they have different objectives: {told}. Run one sweep for each objective"


def _unit_of_speed(results: Iterable[Result]) -> str:
    """Returns `words/s` if all jobs that have a speed report words per second, else `examples/s`."""
    rated = [one for one in results if one.examples_per_sec is not None or one.words_per_sec is not None]
    return "words/s" if all(one.words_per_sec is not None for one in rated) else "examples/s"


def _speed(one: Result, unit: str) -> float | None:
    return one.words_per_sec if unit == "words/s" else one.examples_per_sec


def _names_of(results: Iterable[Result]) -> set[str]:
    return {one.objective_name for one in results if one.objective_name is not None}


def _result(account: Account, job: Job) -> Result:
    standing = account.standings.get(job.name)
    summary = {} if standing is None else read_summary(Path(job.run_dir))
    return Result(
        rank=None,
        job=job.title,
        status=NOT_RUN if standing is None else standing.status,
        objective=None if standing is None else standing.objective,
        words_per_sec=_number_in(summary, "words_per_sec"),
        step_ms_p50=_number_in(summary, "step_ms_p50"),
        steps=None if (steps := _number_in(summary, "steps")) is None else int(steps),
        run_dir=job.run_dir,
        overrides=job.overrides,
        tracker_run_id=text_in(summary, RUN_ID_KEY),
        error=None if standing is None or not standing.exit_status else standing.error or text_in(summary, "error"),
        objective_name=None if standing is None else standing.objective_name,
        direction="minimize" if standing is None else standing.direction,
        examples_per_sec=_number_in(summary, "examples_per_sec"),
    )


def text_in(summary: Mapping[str, Any], key: str) -> str | None:
    """Returns a text in a summary, which may be damaged. Returns None if there is no text that can be a path or part of
    a message."""
    value = summary.get(key)
    if not isinstance(value, str) or "\0" in value:
        return None
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return None
    return value


def _number_in(summary: Mapping[str, Any], key: str) -> float | None:
    value = summary.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _with_rank(one: Result, number: int) -> Result:
    return Result(**vars(one) | {"rank": number})


def _below(run_dir: str, sweep_dir: Path) -> str:
    """Shortens a path below the sweep's folder, since the table's title already names that folder."""
    path = Path(run_dir)
    return f"./{path.relative_to(sweep_dir)}" if path.is_relative_to(sweep_dir) else run_dir


def _is_number(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def _flat(one: Result) -> dict[str, Any]:
    """Returns the fields of a result as `results.json` stores them."""
    return {entry.metadata.get("key", entry.name): _finite(getattr(one, entry.name)) for entry in fields(one)}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
