"""Runs a sweep: prepares its folder, ledger and parent run, runs the jobs, and reports the results."""

from __future__ import annotations

import json
import logging
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.check import CheckedSweep
from parallax_runner.driver.report import PLAIN_WIDTH
from parallax_runner.errors import ConfigError, ExportError, Setting
from parallax_runner.files.credentials import without_password
from parallax_runner.files.locks import locked
from parallax_runner.files.plain import reason_of
from parallax_runner.process.exit_status import INTERRUPTED, tell
from parallax_runner.sweep import objectives_plot, parent, repeats, results, resumed
from parallax_runner.sweep.ensemble import make_ensemble
from parallax_runner.sweep.events import HOST_ENDED
from parallax_runner.sweep.ledger import Account, Job, Ledger, Standing
from parallax_runner.sweep.results import Result
from parallax_runner.sweep.signals import Forwarder, ends_job, handled
from parallax_runner.track.tracker import Status

log = logging.getLogger(__name__)

LOCK = "sweep.lock"


def run_sweep(sweep: CheckedSweep, again: Sequence[str], launch: Callable[[], None]) -> int:
    """Runs all jobs with `launch` and returns the exit status. This is the stop status if the sweep was stopped,
    otherwise the status of a failed ensemble or the highest exit status of the jobs.

    `again` contains the command-line arguments that resume the sweep. Raises ConfigError if another process is running
    the sweep, or if a job of an earlier start is still running.
    """
    sweep.dir.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(sweep.dir)
    with _only_one(sweep.dir):
        _check_nothing_runs(ledger)
        planned = _planned(sweep)
        configs = [one.config for one in sweep.jobs]
        _tell_before(ledger, list(zip(planned, configs, strict=True)))
        again = [without_password(word) for word in again]
        ledger.append("sweep_started", arguments=again)
        tracker = parent.open_parent(sweep)
        with _signals(sweep, ledger):
            launch_status = _status_of(launch)
        account = ledger.read()
        stop_status = _stop_status(account, launch_status)
        status = stop_status or max(account.failed_status, launch_status)
        outcome = _outcome(stop_status, status)
        ranked = results.rank(account, planned)
        try:
            saved = _saved(ranked, sweep.dir, outcome)
            _show(ranked, sweep.dir, shlex.join(["python", "-m", "parallax_runner", *again]) if status else None)
            parent.log_objectives(tracker, account.objectives, results.goal_of(ranked))
            for path in (*saved, *_drawn(ranked, sweep.dir), ledger.path):
                tracker.log_artifact(path)
            if sweep.first.sweep.ensemble is not None and not stop_status:
                status = _ensemble(ranked, sweep.dir, sweep.first.sweep.ensemble) or status
        finally:
            tracker.end(outcome)
    return status


def _outcome(stop_status: int, status: int) -> Status:
    if stop_status:
        return "interrupted"
    return "failed" if status else "finished"


def _stop_status(account: Account, launch_status: int) -> int:
    """Returns the exit status of a stopped sweep, or 0 if the sweep was not stopped."""
    if launch_status in INTERRUPTED:
        return account.stop_status or launch_status
    return account.stop_status


def _tell_before(ledger: Ledger, planned: Sequence[tuple[Job, RunConfig]]) -> None:
    """Prints what earlier starts of the sweep have left: damaged lines in the ledger, and the progress of the jobs."""
    known = ledger.read()
    if known.damaged_lines:
        count = "1 line" if known.damaged_lines == 1 else f"{known.damaged_lines} lines"
        print(
            f"parallax_runner: {ledger.path}: {count} cannot be read, and the sweep continues without them. A job "
            "whose end they recorded runs again",
            file=sys.stderr,
        )
    before = resumed.far(known, planned)
    if before is not None:
        print(f"sweep {ledger.path.parent}: {before}", file=sys.stderr)


def _ensemble(ranked: Sequence[Result], sweep_dir: Path, count: int) -> int:
    """Creates the ensemble, prints a line about it, and returns the exit status."""
    try:
        print(f"parallax_runner: {make_ensemble(ranked, sweep_dir, count)}", file=sys.stderr)
    except ExportError as error:
        return tell(error)
    return 0


def _saved(ranked: Sequence[Result], sweep_dir: Path, outcome: Status) -> list[Path]:
    """Writes `results.json`. If that fails, prints a note, because the jobs have ended."""
    try:
        return [results.save(ranked, sweep_dir, outcome, means=repeats.as_json(repeats.repeats(ranked)))]
    except OSError as error:
        print(f"parallax_runner: {sweep_dir / results.FILE_NAME} was not written: {error.strerror}", file=sys.stderr)
        return []


def _drawn(ranked: Sequence[Result], sweep_dir: Path) -> Iterable[Path]:
    try:
        yield objectives_plot.save(ranked, sweep_dir)
    except Exception as error:  # for example, a broken font cache or a full disk; results.json contains the numbers
        log.warning("cannot plot the sweep: %s: %s", type(error).__name__, error)


def _planned(sweep: CheckedSweep) -> list[Job]:
    return [Job.of(sweep.dir, one.config.run_dir, one.title, one.overrides) for one in sweep.jobs]


def _signals(sweep: CheckedSweep, ledger: Ledger) -> AbstractContextManager[None]:
    if sweep.is_on_slurm:
        from parallax_runner.sweep.submitit_launcher import on_slurm  # submitit is an extra

        return on_slurm()
    return handled(Forwarder(ledger)) if sweep.is_parallel else ends_job()


def _status_of(launch: Callable[[], None]) -> int:
    try:
        with warnings.catch_warnings():
            # Hydra's Optuna plugin uses features that later versions of Optuna will remove.
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"optuna\b|hydra_plugins\b")
            launch()
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return tell(error)
    return 0


def _show(ranked: Sequence[Result], sweep_dir: Path, again: str | None) -> None:
    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=PLAIN_WIDTH)
    console.print(results.table(ranked, sweep_dir))
    for line in repeats.described(repeats.repeats(ranked), results.name_of_objective(ranked) or "objective"):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    reason = results.disagreement(ranked)
    if reason is not None:
        console.print(f"note: {reason}", highlight=False, markup=False, soft_wrap=True)
    unfinished = sum(one.status != "finished" for one in ranked)
    if again is not None and unfinished:
        console.print(
            f"{unfinished} of {len(ranked)} jobs have not finished. To run them:\n    {again}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _check_nothing_runs(ledger: Ledger) -> None:
    for standing in ledger.read().running():
        slurm_job = standing.slurm_job
        if slurm_job is None and not standing.is_here:
            raise _on_another_host(ledger, standing)
        runner = f"process {standing.pid}" if slurm_job is None else f"Slurm job {slurm_job}"
        ending = "end it" if slurm_job is None else f"end it with scancel {slurm_job}"
        raise ConfigError(f"{runner} from an earlier start is still running {standing.job.name}.").about(
            Setting.of("hydra.sweep.dir", ledger.path.parent), remedy=f"Wait until it ends, or {ending}"
        )


def _on_another_host(ledger: Ledger, standing: Standing) -> ConfigError:
    ended = shlex.quote(json.dumps({"event": HOST_ENDED, "host": standing.host}))
    return ConfigError(
        f"{standing.job.name} was started on host {standing.host} (process "
        f"{standing.pid}), and this host cannot tell whether it is still running."
    ).about(
        Setting.of("hydra.sweep.dir", ledger.path.parent),
        remedy="Resume the sweep on "
        f"{standing.host}. If that host no longer runs it, add this to the record, and resume the sweep here:\n"
        f"    echo {ended} >> {shlex.quote(str(ledger.path))}",
    )


@contextmanager
def _only_one(sweep_dir: Path) -> Iterator[None]:
    """Holds the sweep's lock. The kernel releases the lock when the process dies."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(sweep_dir / LOCK, wait=False))
        except BlockingIOError as error:
            raise ConfigError("another process is running this sweep.").about(
                Setting.of("hydra.sweep.dir", sweep_dir),
                remedy="Wait until it ends, or omit hydra.sweep.dir to start another sweep",
            ) from error
        except OSError as error:
            raise ConfigError(f"its lock file {LOCK} cannot be locked: {reason_of(error)}.").about(
                Setting.of("hydra.sweep.dir", sweep_dir),
                remedy="Correct this, or omit hydra.sweep.dir to start another sweep",
            ) from error
        yield
