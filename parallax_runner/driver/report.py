"""The driver's output for users: the plan, `summary.json`, and the last lines on the terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from parallax_runner.calibration.constants_table import constants_table
from parallax_runner.checkpoints.checkpoint_files import step_of
from parallax_runner.config.actions import action_named
from parallax_runner.config.schema import ProfileConfig
from parallax_runner.config.worker_numbers import ClusterSize
from parallax_runner.driver.run_summary import RunSummary
from parallax_runner.errors import StorageError, is_of_storage
from parallax_runner.files.credentials import masked_values
from parallax_runner.launch.blame.first_death import Failure
from parallax_runner.launch.watch.whereabouts import describe
from parallax_runner.plan import outcome
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.cost.constants import Constants
from parallax_runner.planning.cost_table import cost_table
from parallax_runner.planning.plan_table import memory_table, plan_table
from parallax_runner.track.run_record import SUMMARY, write_summary

log = logging.getLogger(__name__)

PLAIN_WIDTH = 140  # the width of tables if stderr is not a terminal


def show_plan(plan: Plan, *, constants: Constants | None = None, advice: str | None = None) -> None:
    """Prints the table of variables, the plan's notes and the advice. If the `constants` of the cost model are given
    and the plan has several workers and contains costs, also prints the cost of each route and the constants. With
    `constants`, also prints the predicted memory."""
    console = wide_console(PLAIN_WIDTH)
    console.print(plan_table(plan))
    if constants is not None and plan.workers > 1 and any(variable.costs for variable in plan.variables):
        console.print(cost_table(plan))
        console.print(constants_table(constants))
    if constants is not None:
        console.print(memory_table(plan))
    for note in (*map(str, plan.moved), *plan.notes):
        console.print(f"note: {note}", highlight=False, markup=False)
    if advice is not None:
        console.print(f"advice: {advice}", highlight=False, markup=False)


def wide_console(plain_width: int) -> Console:
    """Returns a console on stderr. If stderr is not a terminal, the console is `plain_width` columns wide."""
    console = Console(stderr=True)
    return console if console.is_terminal else Console(stderr=True, width=plain_width)


def leave_outcome(
    plan: Plan, summary: RunSummary, done: Mapping[int, Mapping[str, Any]], run_dir: Path, *, shows: bool = True
) -> None:
    """Writes a file with the plan's predictions and the measured values. With `shows`, also prints both, provided that
    rows were measured and there are several workers. `done` contains the last message of each rank."""
    sent = [entry["sent_bytes_by_variable"] for entry in done.values() if entry.get("sent_bytes_by_variable")]
    found = outcome.Outcome.of(plan, sent, step_ms=summary.step_ms_p50, sent_bytes=summary.sent_bytes_per_step)
    try:
        outcome.save(found, run_dir)
    except OSError as error:
        log.warning("%s cannot be written: %s", run_dir / outcome.FILE_NAME, error)
    if shows and found.rows_measured and plan.workers > 1:
        wide_console(PLAIN_WIDTH).print(outcome.outcome_table(found))


def explain_storage(error: BaseException, run_dir: Path) -> BaseException:
    """If the disk caused the error, returns a StorageError that names the file and the remedy. Otherwise, returns the
    error itself. An error without a file name can concern any file."""
    if not isinstance(error, OSError) or not (
        is_of_storage(error) or Path(error.filename or "").is_relative_to(run_dir)
    ):
        return error
    what = "a file" if error.filename is None else f"{error.filename}:"
    told = StorageError(
        f"{what} cannot be written: {error.strerror}; free disk space, or use hydra.run.dir=… instead of {run_dir}"
    )
    told.__cause__ = error
    return told


def leave_summary(run_dir: Path, summary: RunSummary) -> None:
    """Writes `summary.json`. If that fails, prints a message instead of raising an error, because the reason why the
    run ended is more important."""
    try:
        write_summary(run_dir, masked_values(summary.flat()))
    except OSError as error:
        print(f"parallax_runner: {run_dir / SUMMARY} cannot be written: {error.strerror}", file=sys.stderr)


def tell_restart(failure: Failure, *, step: int, restart: int, max_restarts: int) -> None:
    """Prints one line that states which process died, and from which step the run continues."""
    counted = "restart" if failure.is_leaving else f"restart {restart} of {max_restarts}"
    line = f"{failure}; {counted} from step {step}"
    log.warning("%s", line)
    print(line, file=sys.stderr)


def tell_size(before: Plan, after: Plan, size: ClusterSize, *, step: int) -> None:
    """Prints one line about a run that continues on a cluster of another size."""
    told = _changed("worker", before.workers, after.workers)
    if after.servers != before.servers:
        told += f" and {_changed('server', before.servers, after.servers)}"
    if size.hosts:
        told += f", on {', '.join(size.hosts)}"
    tell_notes([f"the run continues from step {step} with {told}"])


def _changed(what: str, before: int, after: int) -> str:
    counted = f"1 {what}" if after == 1 else f"{after} {what}s"
    return counted if after == before else f"{counted} instead of {before}"


def tell_notes(notes: Iterable[str]) -> None:
    """Prints a line for each note about the model or the data. Workers create the same notes but do not print them."""
    for note in notes:
        log.warning("%s", note)
        print(f"parallax_runner: {note}", file=sys.stderr)


def tell_unused_gpus(rank: int, *, is_built_for_gpus: bool) -> None:
    """Prints one line that states why a worker computes on the CPU although its machine has GPUs."""
    if is_built_for_gpus:
        reason = "cannot load CUDA's driver or libraries"
    else:
        reason = "was built without CUDA; in a checkout, PARALLAX_EXTRA=gpu scripts/setup installs a build with CUDA"
    tell_notes([f"worker {rank} computes on the CPU, although its machine has GPUs: TensorFlow {reason}"])


def tell_other_examples(rank: int, *, difference: str) -> None:
    """Prints one line that states that a worker makes other data than the driver."""
    tell_notes(
        [
            f"rank {rank} reads other {difference} than the driver: each worker makes its own data, so an epoch can "
            "repeat some examples and omit others; seed each random generator that the data uses"
        ]
    )


def tell_stall(news: str) -> None:
    """Prints one line about a run in which no step has ended for a long time."""
    print(f"parallax_runner: {news}", file=sys.stderr)


def tell_skipped(step: int) -> None:
    """Prints one line for a step that changed nothing because a loss or gradient was not finite."""
    print(f"parallax_runner: step {step} skipped: its loss or gradients are NaN or infinite", file=sys.stderr)


def tell_printed(rank: int, stream: str, line: str) -> None:
    """Prints a line that the script printed in a worker. The line is printed to the same stream as in the worker."""
    print(f"[worker {rank}] {line}", file=sys.stdout if stream == "stdout" else sys.stderr, flush=True)


def tell_profile(profile: ProfileConfig) -> None:
    """Makes a trace and tables from the ranks' profiles, and prints one line about the result."""
    if profile.name == "off":
        return
    from parallax_runner.profile.end_of_run import summarize_profile

    print(f"parallax_runner: {summarize_profile(profile)}", file=sys.stderr)


def _saved(ckpt_path: str | None) -> str:
    """Returns text that states how many steps are saved. Returns an empty string if the number is unknown, for example
    if the run has no checkpoint yet."""
    try:
        return "" if ckpt_path is None else f"{step_of(Path(ckpt_path))} steps are saved; "
    except ValueError:  # the user has renamed the checkpoint
        return ""


def tell_end(
    summary: RunSummary,
    failure: Failure | None,
    run_dir: Path,
    resume_command: str | None = None,
    variables: Sequence[str] = (),
) -> None:
    """Prints the last lines on the terminal: how the run ended and how to resume it. `variables` are the environment
    variables that the command needs. After a failure, also prints the last output of the failed process and what the
    other processes were doing."""
    if failure is not None:
        _tell_failure(failure, run_dir)
    elif summary.status != "finished":
        print(f"parallax_runner: {summary.error or summary.status}; {run_dir}", file=sys.stderr)
    if summary.status == "finished":
        print(action_named(summary.action).told_at_end(summary, run_dir), file=sys.stderr)
        return
    if resume_command is not None:
        needs = f" (needs the environment variables {', '.join(variables)})" if variables else ""
        print(f"{_saved(summary.ckpt_path)}to continue{needs}:\n    {resume_command}", file=sys.stderr)


def _tell_failure(failure: Failure, run_dir: Path) -> None:
    """Prints a failure, the last output of the failed process, and what the other processes were doing."""
    last_lines = "".join(f"    {line}\n" for line in failure.last_lines)
    said = f"its last lines:\n{last_lines}" if last_lines else "it printed nothing\n"
    if failure.recurs:  # The message explains the error, and the traceback is in the log.
        said = ""
    others = "".join(f"    {line}\n" for line in describe(failure.others))
    meanwhile = f"meanwhile:\n{others}" if others else ""
    print(f"parallax_runner: {failure}\n{said}{meanwhile}logs: {run_dir / 'logs'}", file=sys.stderr)
