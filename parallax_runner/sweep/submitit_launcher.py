"""Runs the jobs of a sweep as Slurm jobs, for `hydra/launcher=submitit_slurm`.

submitit submits the jobs, and each job records in the ledger how it ended. submitit's own wait for results needs
`sacct`, which many clusters lack, and never returns if a job was killed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from sys import stderr
from typing import Any

import submitit
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus
from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher

from parallax_runner.config.launched_job import compose_launched
from parallax_runner.config.launchers import declared_by
from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch.launchers.slurm.batch_job import standing as standing_in_slurm
from parallax_runner.launch.launchers.slurm.job_queue import Queue, cancel, most_in_array
from parallax_runner.process.exit_status import tell
from parallax_runner.sweep.job import value_for_sweeper
from parallax_runner.sweep.ledger import SUBMITTED, Job, Ledger, Standing
from parallax_runner.sweep.signals import Noted, handled

TARGET = f"{SlurmLauncher.__module__}.{SlurmLauncher.__qualname__}"
# The keys of cluster=slurm that determine the size of a job's allocation, unless hydra.launcher sets that size.
SIZES = ("nodes", "tasks_per_node")
ASK_SECS = 2.0
TICK_SECS = 0.2
noted = Noted()


@contextmanager
def on_slurm() -> Iterator[None]:
    """Makes Hydra create a LedgerLauncher instead of submitit's launcher, and records signals."""
    noted.signal = None
    Plugins.instance().class_name_to_class[TARGET] = LedgerLauncher
    with handled(noted):
        yield


class LedgerLauncher(SlurmLauncher):
    """Submits the jobs that have not finished, and waits until all of them have ended."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Returns one result per job, even for jobs that failed.

        Raises SystemExit if Slurm refuses a job, or if the sweep or one of its jobs was stopped. With
        `sweep.fail_fast`, also raises SystemExit after a job has failed.
        """
        assert self.config is not None
        ledger = Ledger(Path(str(self.config.hydra.sweep.dir)))
        composed = [self._composed(overrides, initial_job_idx + n) for n, overrides in enumerate(job_overrides)]
        jobs = [job for job, _ in composed]
        ended = _finished_before(jobs, ledger)
        submitted = self._submit(
            {n: list(job_overrides[n]) for n in range(len(jobs)) if n not in ended},
            initial_job_idx,
            [size for _, size in composed],
        )
        for n, slurm_job in submitted.items():
            ledger.append(SUBMITTED, jobs[n], slurm_job=slurm_job.job_id)
        for n in _until_ended(submitted, ledger):
            ended[n] = _end_of(jobs[n], submitted[n], ledger, fail_fast=self.config.sweep.fail_fast)
            _tell(ended[n], submitted[n])
        self._raise_stop(ledger, list(ended.values()))
        values = [value_for_sweeper(ended[n], ledger, self.config.hydra) for n in range(len(jobs))]
        return [
            JobReturn(overrides=list(overrides), status=JobStatus.COMPLETED, _return_value=value)
            for overrides, value in zip(job_overrides, values, strict=True)
        ]

    def _composed(self, overrides: Sequence[str], number: int) -> tuple[Job, dict[str, int]]:
        """Returns a job, and the size of its allocation if its configuration specifies one."""
        job = compose_launched(self.hydra_context.config_loader, self.config, overrides, number)
        size = {}
        if declared_by(job.config.cluster.launcher).runs_slurm_job:
            given = tuple(line.partition("=")[0] for line in job.hydra_overrides)
            size = {key: getattr(job.config.cluster, key) for key in SIZES if f"hydra.launcher.{key}" not in given}
        return Job.of(Path(str(self.config.hydra.sweep.dir)), job.config.run_dir, job.title, job.overrides), size

    def _submit(
        self, overrides: dict[int, list[str]], first: int, sizes: Sequence[dict[str, int]]
    ) -> dict[int, submitit.Job[Any]]:
        """Submits jobs to Slurm. Jobs of the same size form one job array, or several if Slurm's arrays are smaller.

        Slurm limits the jobs that run at a time in each array alone. With such a limit, an array therefore begins when
        the previous one has ended.
        """
        made: dict[int, submitit.Job[Any]] = {}
        is_limited = self.params["array_parallelism"] < len(overrides)
        for numbers in arrays_of(overrides, sizes, most_in_array()):
            size = sizes[numbers[0]]
            state = Singleton.get_state()
            # The arguments of SlurmLauncher.__call__.
            of_jobs = [(overrides[n], "hydra.sweep.dir", first + n, f"job_id_for_{first + n}", state) for n in numbers]
            try:
                executor = self._executor(size, after=list(made.values())[-1:] if is_limited else [])
                made |= zip(numbers, executor.map_array(self, *zip(*of_jobs, strict=True)), strict=True)
            except (RuntimeError, OSError) as error:  # srun is missing, or sbatch refuses the job
                cancel(one.job_id for one in made.values())
                # Hydra would show a traceback for any other exception.
                raise SystemExit(
                    tell(LaunchError(str(error)).about(Setting("hydra/launcher", "submitit_slurm")))
                ) from error
        if made:
            folder = next(iter(made.values())).paths.folder.parent
            ids = ", ".join(made[n].job_id for n in sorted(made))
            print(f"parallax_runner: submitted as Slurm jobs {ids}; the logs are under {folder}", file=stderr)
        return made

    def _executor(self, size: dict[str, int], *, after: Sequence[submitit.Job[Any]]) -> submitit.AutoExecutor:
        """Returns an executor whose jobs begin when the whole arrays of the jobs `after` have ended."""
        general = set(BaseQueueConf.__dataclass_fields__)
        settings = dict(self.params | size)
        if after:
            more = settings.get("additional_parameters") or {}
            arrays = [f"afterany:{one.job_id.partition('_')[0]}" for one in after]
            depends = ",".join(filter(None, (more.get("dependency"), *arrays)))
            settings["additional_parameters"] = {**more, "dependency": depends}
        folder, timeouts = settings.pop("submitit_folder"), settings.pop("max_num_timeout")
        executor = submitit.AutoExecutor(folder=folder, cluster="slurm", slurm_max_num_timeout=timeouts)
        executor.update_parameters(
            **{name if name in general else f"slurm_{name}": value for name, value in settings.items()}
        )
        return executor

    def _raise_stop(self, ledger: Ledger, ended: Sequence[Standing]) -> None:
        account = ledger.read()
        interrupted = max((one.exit_status for one in ended if one.status == "interrupted"), default=0)
        status = account.stop_status or interrupted
        if not status and self.config.sweep.fail_fast:
            status = account.failed_status
        if status:
            raise SystemExit(status)


def arrays_of(numbers: Iterable[int], sizes: Sequence[dict[str, int]], most: int) -> list[list[int]]:
    """Returns the jobs of each job array: jobs with the same size, at most `most` of them."""
    order = sorted(numbers, key=lambda n: (sorted(sizes[n].items()), n))
    groups = [list(group) for _, group in groupby(order, key=lambda n: sizes[n])]
    return [part for group in groups for part in batched(group, most)]


def batched(numbers: Sequence[int], most: int) -> list[list[int]]:
    """Returns the numbers in order, in lists of at most `most` numbers."""
    return [list(numbers[start : start + most]) for start in range(0, len(numbers), most)]


def _until_ended(submitted: dict[int, submitit.Job[Any]], ledger: Ledger) -> Iterator[int]:
    """Yields the number of each job as soon as Slurm reports that the job has ended. After a signal, cancels all
    jobs."""
    waiting = {n: slurm_job.job_id for n, slurm_job in submitted.items()}
    is_stopping = False
    while waiting:
        asked_secs = time.monotonic()
        while time.monotonic() < asked_secs + ASK_SECS and (noted.signal is None or is_stopping):
            time.sleep(TICK_SECS)
        if noted.signal is not None and not is_stopping:
            is_stopping = True
            ledger.append("stop", exit_status=128 + noted.signal)
            cancel(waiting.values())
        for n in _ended_in_queue(waiting):
            del waiting[n]
            yield n


def _ended_in_queue(waiting: dict[int, str]) -> list[int]:
    queue = Queue()
    return [n for n, slurm_job in waiting.items() if not queue.may_have(slurm_job)]


def _finished_before(jobs: Sequence[Job], ledger: Ledger) -> dict[int, Standing]:
    """Returns the standings of the jobs that have already finished, by number, and records that they are skipped."""
    found: dict[int, Standing] = {}
    for n, job in enumerate(jobs):
        standing = ledger.skip_finished(job)
        if standing is not None:
            found[n] = standing
    return found


def _end_of(job: Job, slurm_job: submitit.Job[Any], ledger: Ledger, *, fail_fast: bool) -> Standing:
    """Returns the state of a job that has ended.

    A job without an outcome in the ledger was killed or could not start. It is treated as failed, unless the sweep was
    stopped before the job began.
    """
    own, account = slurm_job.job_id, ledger.read()
    found = account.standings.get(job.name)
    if found is not None and found.slurm_job == own:
        has_outcome = found.exit_status != 0 or found.status == "finished"
        if has_outcome:
            return found
    elif account.stop_status:
        return Standing(job, "interrupted", 0, exit_status=account.stop_status)
    elif fail_fast and account.failed_status:
        return Standing(job, "failed", 0, exit_status=account.failed_status)
    state, known_status = standing_in_slurm(own)
    exit_status = known_status or 1
    error = f"Slurm job {own} ended in state {state} and left no result; log: {_log_of(slurm_job)}"
    ledger.append("failed", job, exit_status=exit_status, error=error, slurm_job=own)
    return Standing(job, "failed", 0, exit_status=exit_status, error=error, slurm_job=own)


def _tell(standing: Standing, slurm_job: submitit.Job[Any]) -> None:
    log = "" if standing.status == "finished" else f"; log: {_log_of(slurm_job)}"
    print(f"parallax_runner: {standing.job.title}: {standing.status} (Slurm job {slurm_job.job_id}){log}", file=stderr)


def _log_of(slurm_job: submitit.Job[Any]) -> Path:
    return Path(slurm_job.task(0).paths.stderr)
