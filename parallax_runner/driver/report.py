"""What the driver tells people: the plan, `summary.json`, and the last lines on the terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from parallax_runner.calibration.constants_table import constants_table
from parallax_runner.checkpoints.files import step_of
from parallax_runner.config.objective import TRAINING_LOSS
from parallax_runner.config.schema import ProfileConfig
from parallax_runner.driver.run_summary import RunSummary
from parallax_runner.errors import StorageError, is_of_storage
from parallax_runner.files.credentials import masked_values
from parallax_runner.launch.blame.first_death import Failure
from parallax_runner.launch.watch.whereabouts import describe
from parallax_runner.plan import outcome
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.cost.constants import Constants
from parallax_runner.planning.cost_table import cost_table
from parallax_runner.planning.plan_table import plan_table
from parallax_runner.track.run_record import SUMMARY, write_summary

log = logging.getLogger(__name__)

PLAIN_WIDTH = 140  # columns of tables where there is no terminal


def show_plan(plan: Plan, *, constants: Constants | None = None, advice: str | None = None) -> None:
    """Prints the table of variables, the plan's notes and the advice; between table and notes, if the cost model's
    `constants` are given and it knows such plans, what each route would cost, and them."""
    console = wide_console(PLAIN_WIDTH)
    console.print(plan_table(plan))
    if constants is not None and plan.workers > 1 and any(variable.costs for variable in plan.variables):
        console.print(cost_table(plan))
        console.print(constants_table(constants))
    for note in (*map(str, plan.moved), *plan.notes):
        console.print(f"note: {note}", highlight=False, markup=False)
    if advice is not None:
        console.print(f"advice: {advice}", highlight=False, markup=False)


def wide_console(plain_width: int) -> Console:
    """On stderr; `plain_width` columns wide where that is no terminal."""
    console = Console(stderr=True)
    return console if console.is_terminal else Console(stderr=True, width=plain_width)


def leave_outcome(plan: Plan, summary: RunSummary, done: Mapping[int, Mapping[str, Any]], run_dir: Path) -> None:
    """Writes what the plan predicted beside what was measured; shows it where rows were measured.
    `done` has the ranks' last words."""
    sent = [entry["sent_bytes_by_variable"] for entry in done.values() if entry.get("sent_bytes_by_variable")]
    found = outcome.Outcome.of(plan, sent, step_ms=summary.step_ms_p50, sent_bytes=summary.sent_bytes_per_step)
    try:
        outcome.save(found, run_dir)
    except OSError as error:
        log.warning("%s is not written: %s", run_dir / outcome.FILE_NAME, error)
    if found.rows_measured and plan.workers > 1:
        wide_console(PLAIN_WIDTH).print(outcome.outcome_table(found))


def explain_storage(error: BaseException, run_dir: Path) -> BaseException:
    """The error itself, or, where the disk and not the program is at fault, one that says which file and what to do.
    An error without a name may be of any file."""
    if not isinstance(error, OSError) or not (
        is_of_storage(error) or Path(error.filename or "").is_relative_to(run_dir)
    ):
        return error
    what = "a file" if error.filename is None else f"{error.filename}:"
    told = StorageError(
        f"{what} cannot be written: {error.strerror}; make room or give the run another folder with hydra.run.dir=… "
        f"than {run_dir}"
    )
    told.__cause__ = error
    return told


def leave_summary(run_dir: Path, summary: RunSummary) -> Path:
    """Writes `summary.json`; where even that is impossible, says so, for the reason of the run's end matters more."""
    try:
        return write_summary(run_dir, masked_values(summary.flat()))
    except OSError as error:
        print(f"parallax_runner: {run_dir / SUMMARY} cannot be written: {error.strerror}", file=sys.stderr)
        return run_dir / SUMMARY


def tell_restart(failure: Failure, *, step: int, restart: int, max_restarts: int) -> None:
    """One line: who died, and from where the run goes on."""
    line = f"{failure}; restart {restart} of {max_restarts} from step {step}"
    log.warning("%s", line)
    print(line, file=sys.stderr)


def tell_stall(news: str) -> None:
    """One line when no step ends for long."""
    print(f"parallax_runner: {news}", file=sys.stderr)


def tell_skipped(step: int) -> None:
    """One line for a step that changed nothing, because a loss or gradient was not finite."""
    print(f"parallax_runner: step {step} skipped: its loss or gradients are NaN or infinite", file=sys.stderr)


def tell_printed(rank: int, stream: str, line: str) -> None:
    """A line that the script has printed in a worker, to the same stream here."""
    print(f"[worker {rank}] {line}", file=sys.stdout if stream == "stdout" else sys.stderr, flush=True)


def tell_profile(profile: ProfileConfig) -> None:
    """Makes a trace and tables of what the ranks have profiled, and tells in one line what came of it."""
    if profile.name == "off":
        return
    from parallax_runner.profile.end_of_run import summarize_profile

    print(f"parallax_runner: {summarize_profile(profile)}", file=sys.stderr)


def _repeated(summary: RunSummary) -> str:
    first, steps = summary.first_step, summary.steps
    return f"{steps - first} steps" + (f" from step {first} on" if first else "")


def _saved(ckpt_path: str | None) -> str:
    """Nothing where it is not known: a run that is stopped early has not looked yet."""
    try:
        return "" if ckpt_path is None else f"{step_of(Path(ckpt_path))} steps are saved; "
    except ValueError:  # a checkpoint that somebody has renamed
        return ""


def tell_end(summary: RunSummary, failure: Failure | None, run_dir: Path, resume_command: str | None = None) -> None:
    """The last lines on the terminal: how the run ended; where a process failed, what it said last, and what the
    others waited in; and how to go on."""
    if failure is not None:
        last_lines = "".join(f"    {line}\n" for line in failure.last_lines)
        said = f"its last lines:\n{last_lines}" if last_lines else "it said nothing\n"
        if failure.recurs:  # it has said what was wrong in its own words; its traceback is in the log
            said = ""
        others = "".join(f"    {line}\n" for line in describe(failure.others))
        meanwhile = f"meanwhile:\n{others}" if others else ""
        print(f"parallax_runner: {failure}\n{said}{meanwhile}logs: {run_dir / 'logs'}", file=sys.stderr)
    elif summary.status != "finished":
        print(f"parallax_runner: {summary.error or summary.status}; {run_dir}", file=sys.stderr)
    if summary.status != "finished" and resume_command is not None:
        print(f"{_saved(summary.ckpt_path)}to go on:\n    {resume_command}", file=sys.stderr)
    if summary.status != "finished":
        return
    if summary.verification is not None:
        print(
            f"verified: after {_repeated(summary)} every variable equals one device's, largest difference "
            f"{summary.verification.max_difference:.2g} of what it moved; {run_dir}",
            file=sys.stderr,
        )
    elif summary.action == "search":
        found = None if summary.search is None else summary.search.partition_choice
        print(
            f"found: {found} partitions; {run_dir}\n"
            f"without a search: partition=fixed partition.num={found} partition.cut=by_bytes",
            file=sys.stderr,
        )
    else:
        objective = summary.objective
        told = {"loss": summary.loss_last}
        if objective.name != TRAINING_LOSS.name:
            told[objective.name] = objective.value
        shown = "".join(f", {name} {value:.4g}" for name, value in told.items() if value is not None)
        print(f"finished: {summary.steps} steps{shown}; {run_dir}", file=sys.stderr)
