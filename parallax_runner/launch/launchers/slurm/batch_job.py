"""Submits a run to Slurm: writes the job script, submits it, follows the job, and reports how the job ended."""

from __future__ import annotations

import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parallax_runner.config.actions import action_of
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.frozen import needed_variables
from parallax_runner.config.launchers import declared_by
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.worker_numbers import is_elastic, least_workers, most_workers
from parallax_runner.errors import LaunchError, Setting
from parallax_runner.files.regular import open_regular
from parallax_runner.files.whole import write_whole
from parallax_runner.launch.interrupts import Interrupts
from parallax_runner.launch.launchers.predicted_memory import driver_mib, for_smallest_size, server_mib, worker_mib
from parallax_runner.launch.launchers.slurm.allocation import job_id, sweep_job_id, warning_signal
from parallax_runner.launch.launchers.submission import Submission
from parallax_runner.plan.plan import Plan

SCRIPT = "job.sbatch"
LOG = "slurm-{job}.log"
# The time between Slurm's warning signal and the time limit. It must be long enough for a last step and a checkpoint.
WARNING_SECS = 120
# The time limit is this multiple of the predicted training time, plus a fixed time for everything before the first step
# and after the last step.
TIME_MARGIN = 2.0
START_AND_END_SECS = 600
POLL_SECS = 1.0
ENDED_WELL = "COMPLETED"
# Lines of `scontrol show job`.
STATE = re.compile(r"^ +JobState=(\S+)", re.MULTILINE)
EXIT_CODE = re.compile(r"^ +Requeue=\d.* ExitCode=(\d+:\d+)", re.MULTILINE)
# Values that sbatch reads as they are.
PLAIN = re.compile(r"[\w@%+=:,./-]+")
WAITING = frozenset({"PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD"})


class Sbatch(Submission):
    """Submits the run as a script for sbatch."""

    remedy_for_scripts = "start a script in your own sbatch job, and a sweep with hydra/launcher=submitit_slurm"

    def write(self, config: RunConfig, plan: Plan, run_dir: Path, command: str) -> Path:
        """Writes `job.sbatch`."""
        return write_script(config, plan, run_dir, command)

    def hand_over(self, config: RunConfig, path: Path) -> None:
        """Runs sbatch."""
        hand_over(config, path)


def is_to_submit(config: RunConfig) -> bool:
    """Returns whether this run must be submitted to Slurm. Returns False inside a Slurm job."""
    if job_id() is not None or not action_of(config).runs_steps:
        return False
    return bool(declared_by(config.cluster.launcher).runs_slurm_job)


def write_script(config: RunConfig, plan: Plan, run_dir: Path, command: str) -> Path:
    """Writes `job.sbatch`, which runs `command` in the current folder, and returns the path of the file."""
    path = run_dir / SCRIPT
    write_whole(path, script(config, plan, run_dir, command))
    return path


def script(config: RunConfig, plan: Plan, run_dir: Path, command: str) -> str:
    """Returns the text of `job.sbatch`. The user's own options come last and override the other options. Raises
    LaunchError if a path or an option contains a control character."""
    cluster = config.cluster
    options = {
        "job-name": run_dir.name,
        "chdir": os.getcwd(),
        "output": _log_pattern(run_dir),
        "open-mode": "append",
        "nodes": "-".join(str(number) for number in dict.fromkeys(_nodes(config))),
        **_tasks_of_node(config),
        "cpus-per-task": cluster.threads_per_worker,
        "mem": f"{memory_mib(cluster.tasks_per_node, for_smallest_size(plan, _nodes(config)[0]))}M",
        "time": cluster.time_limit or predicted_minutes(config, plan),
        "signal": f"B:USR1@{WARNING_SECS}",
    }
    lines = ["#!/bin/bash", "# Written from the plan (plan.json). USR1 saves a checkpoint and requeues this job."]
    if needed := needed_variables(config):
        # A name can contain any character.
        names = ", ".join(re.sub(r"\W", "?", name) for name in needed)
        lines.append(f"# This job reads the configuration's values from the environment: {names}.")
    lines += [f"#SBATCH --{name}={_quoted(str(value), name)}" for name, value in options.items() if value is not None]
    lines += [f"#SBATCH --{flag}" for flag in _flags(config)]
    own = cluster.sbatch_options
    words = shlex.split(own) if isinstance(own, str) else own
    lines += [f"#SBATCH {_quoted(word, 'cluster.sbatch_options')}" for word in words]
    # A requeued job resumes from its own checkpoint, even if its first start resumed from another checkpoint.
    again = " ${SLURM_RESTART_COUNT:+ckpt.resume=auto}" if config.ckpt.enabled else ""
    arguments = command.split(" ", 1)[1]  # without "python": the job uses this interpreter, whatever the job's PATH is
    return "\n".join([*lines, "", f"exec {shlex.quote(sys.executable)} {arguments}{again}", ""])


def _flags(config: RunConfig) -> tuple[str, ...]:
    return ("requeue", "no-kill") if is_elastic(config) else ("requeue",)


def _tasks_of_node(config: RunConfig) -> dict[str, int]:
    """Returns the option that requests the CPUs of a node. If a number of tasks per node is given, Slurm allocates only
    the smallest number of nodes, because the number of tasks follows from it."""
    cluster = config.cluster
    if is_elastic(config):
        return {"mincpus": cluster.tasks_per_node * cluster.threads_per_worker}
    return {"ntasks-per-node": cluster.tasks_per_node}


def _nodes(config: RunConfig) -> tuple[int, int]:
    """Returns the smallest and the largest number of nodes of the job."""
    cluster = config.cluster
    if not is_elastic(config):
        return cluster.nodes, cluster.nodes
    on_node = 1 if mode_of(config.comm).is_all_on_servers else cluster.tasks_per_node
    return math.ceil(least_workers(cluster) / on_node), math.ceil(most_workers(cluster) / on_node)


def _log_pattern(run_dir: Path) -> str:
    """Returns the path of the job's log, in which Slurm replaces %j with the job's id, and %% with %."""
    if "\\" in str(run_dir):
        raise LaunchError("Slurm drops backslashes from the path of a job's log").about(
            Setting("cluster", "slurm"), Setting.of("run_dir", run_dir), remedy="rename the folder"
        )
    return f"{run_dir}/".replace("%", "%%") + LOG.format(job="%j")


def _quoted(value: str, name: str) -> str:
    """Returns a value as sbatch reads it in a line that begins with `#SBATCH`. In contrast to a shell, sbatch also
    treats backslashes in single quotes as escapes.

    Raises LaunchError if the value contains a control character: what follows a line break would be a command.
    """
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in value):
        raise LaunchError(
            f"{SCRIPT} cannot contain {name}={value!r}: expected a value in UTF-8 without line breaks "
            "and other control characters"
        ).about(Setting("cluster", "slurm"), remedy="rename the folder or change the option")
    if PLAIN.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def predicted_minutes(config: RunConfig, plan: Plan) -> int | None:
    """Returns the time limit in minutes, computed from the predicted step time, or None if there is no prediction."""
    step_ms, steps = plan.predicted.step_ms, config.train.steps
    if step_ms is None or steps is None:
        return None
    return math.ceil((START_AND_END_SECS + TIME_MARGIN * steps * step_ms / 1000) / 60)


def memory_mib(tasks: int, plan: Plan) -> int:
    """Returns the memory in MiB that a node needs for its workers, its server, and the driver, which runs on the first
    node."""
    workers = tasks // plan.replicas_per_worker
    return driver_mib(plan) + workers * worker_mib(plan) + server_mib(plan)


def submit(path: Path) -> str:
    """Submits the script to Slurm and returns the job's id. Raises LaunchError with sbatch's error message."""
    try:
        done = subprocess.run(["sbatch", "--parsable", str(path)], capture_output=True, text=True)
    except OSError as error:
        raise LaunchError(
            f"cannot start sbatch: {error}; with cluster.submit=false, the driver only writes {path}"
        ) from error
    if done.returncode:
        raise LaunchError(f"sbatch rejected {path}: {done.stderr.strip()}").about(Setting("cluster", "slurm"))
    return done.stdout.strip().partition(";")[0]


def hand_over(config: RunConfig, path: Path) -> None:
    """Submits the script if `cluster.submit` is set, and follows the job if `cluster.follow` is set.

    Raises SystemExit with the job's exit status if the job failed. Raises KeyboardInterrupt on Ctrl-C, but the job
    continues.
    """
    if not config.cluster.submit:
        print(f"parallax_runner: written but not submitted: {path}", file=sys.stderr)
        return
    job = submit(path)
    log = path.parent / LOG.format(job=job)
    print(f"parallax_runner: submitted as job {job}; log: {log}; scancel {job} ends the job", file=sys.stderr)
    if config.cluster.follow and (status := follow(job, log)):
        raise SystemExit(status)


def follow(job: str, log: Path) -> int:
    """Copies the job's log to stderr until the job has ended, and returns the exit status of the job."""
    shown = 0
    while True:
        state, exit_status = standing(job)
        new = _content_from(log, shown)
        shown += len(new)
        sys.stderr.write(new.decode(errors="replace"))
        sys.stderr.flush()
        if state not in WAITING:
            print(f"parallax_runner: job {job}: {state.lower()}", file=sys.stderr)
            return exit_status
        time.sleep(POLL_SECS)


def _content_from(log: Path, start: int) -> bytes:
    """Returns the content of a log from byte `start` on, or nothing if there is no readable log yet."""
    try:
        with open_regular(log) as file:
            file.seek(start)
            return file.read()
    except OSError:
        return b""


def standing(job: str) -> tuple[str, int]:
    """Returns a job's state and exit status. They come from Slurm's controller, because not every cluster has
    accounting enabled. The controller does not remember old jobs."""
    argv = ["scontrol", "show", "job", job]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode and "Invalid job id" in done.stderr:
        return "FORGOTTEN", 1
    if done.returncode:  # The controller may be restarting.
        return "PENDING", 0
    return standing_in(done.stdout)


def standing_in(shown: str) -> tuple[str, int]:
    """Returns the state and the exit status from the output of `scontrol show job`. Paths and names in it can contain
    anything except line breaks, also text such as « JobState=COMPLETED». They are not at the beginning of these
    lines."""
    state = STATE.search(shown)
    exit_code = EXIT_CODE.search(shown)
    if state is None:
        raise LaunchError(f"scontrol shows no state of the job: {shown!r}").about(Setting("cluster", "slurm"))
    return state[1], status_of(state[1], "0:0" if exit_code is None else exit_code[1])


def status_of(state: str, exit_code: str) -> int:
    """Returns the exit status that a shell would show: the job's exit status, or 128 plus the number of the signal that
    ended the job. Returns 1 if the job did not complete and Slurm reports neither."""
    status, _, number = exit_code.partition(":")
    if state == ENDED_WELL:
        return 0
    return 128 + int(number) if int(number or 0) else int(status) or 1


def ending_signals(config: RunConfig) -> tuple[signal.Signals, ...]:
    """Returns the additional signals that end a run in a Slurm job."""
    is_warned = job_id() is not None and declared_by(config.cluster.launcher).runs_slurm_job
    return (warning_signal(),) if is_warned or sweep_job_id() is not None else ()


@contextmanager
def started_again(interrupts: Interrupts) -> Iterator[None]:
    """Requeues the job if the run was ended by SIGUSR1, which Slurm sends before the time limit (--signal). Does
    nothing for a job of a sweep, because such a job requeues itself."""
    try:
        yield
    finally:
        if interrupts.first_signal == signal.SIGUSR1 and sweep_job_id() is None:
            requeue()


def requeue() -> None:
    """Requeues the Slurm job of this process and prints the result."""
    job = job_id()
    argv = ["scontrol", "requeue", str(job)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True)
        fault = done.stderr.strip() if done.returncode else None
    except OSError as error:
        fault = str(error)
    told = f"job {job} has been requeued" if fault is None else f"job {job} cannot be requeued: {fault}"
    print(f"parallax_runner: {told}", file=sys.stderr)
