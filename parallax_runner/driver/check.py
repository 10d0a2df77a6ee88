"""Validates every job of a command line before Hydra runs the first job."""

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from parallax_runner.config.actions import action_of
from parallax_runner.config.compose import CONFIG_NAME, Composer, Job, as_typed, resolve_with_environment
from parallax_runner.config.explain import refusal, shown
from parallax_runner.config.master import Master
from parallax_runner.config.rules.hydra import check_hydra
from parallax_runner.config.rules.sweep import check_own_folders
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.unused_notes import unused
from parallax_runner.config.validate import validate
from parallax_runner.driver.only_driver import check_only_driver
from parallax_runner.errors import COMMAND_LINE, ConfigError, Setting
from parallax_runner.files.access import unwritable


@dataclass(frozen=True)
class CheckedJob:
    """One job. `config` is resolved and has no `hydra` node. `overrides` contains all overrides except those for the
    `hydra` node. `title` lists the overrides that distinguish this job from the other jobs."""

    config: RunConfig
    title: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class CheckedSweep:
    """A sweep whose jobs are all valid. `dir` is the folder of the sweep.

    `jobs` is empty if a sweeper chooses values during the sweep. `first` is the configuration of the first job or, if
    `jobs` is empty, the part that all jobs share. `swept` maps each swept key to its values on the command line, such
    as `mpi,ps`. `more_lines` are the overrides to add to the command line so that Hydra composes the same jobs. If
    `is_parallel`, several jobs may run at once. If `is_on_slurm`, they run as Slurm jobs.
    """

    dir: Path
    jobs: tuple[CheckedJob, ...]
    first: RunConfig
    swept: dict[str, str]
    more_lines: tuple[str, ...]
    is_parallel: bool
    is_on_slurm: bool

    @property
    def dir_line(self) -> str:
        """The override that makes a command line continue this sweep."""
        return self.more_lines[0]


def check(arguments: argparse.Namespace) -> CheckedSweep | None:
    """Composes and validates all jobs of Hydra's parsed command line. Returns the sweep, or None for a single job.

    Raises:
        ConfigError: for the first error that is found.
        LaunchError: if this process belongs to a worker of another run.
        SystemExit: with status 0 if this process is a Slurm task that is not the driver.
    """
    composer = Composer(arguments.config_name or CONFIG_NAME, arguments.config_path, arguments.config_dir)
    if arguments.cfg is not None:  # the command only prints the configuration, which need not be valid
        composer.job(arguments.overrides)
        return None
    command = composer.command(arguments.overrides, multirun=arguments.multirun)
    if isinstance(command, Job):
        (checked,) = _validated([command])
        _check_driver(checked.config)
        return None
    reason = unwritable(command.dir)
    if reason is not None:
        raise ConfigError(reason).about(Setting.of("hydra.sweep.dir", shown(command.dir)))
    jobs = _validated(composer.jobs_of(command), needs_objective=not command.jobs_are_known)
    _check_driver(jobs[0].config)
    direction = [] if command.jobs_are_known else _direction_lines(next(composer.jobs_of(command)), jobs[0].config)
    launcher = str(command.config.hydra.launcher.get("_target_", ""))
    return CheckedSweep(
        dir=Path(command.dir),
        jobs=tuple(jobs) if command.jobs_are_known else (),
        first=jobs[0].config,
        swept=_swept(command),
        more_lines=(*command.more_lines, *direction),
        is_parallel=not launcher.endswith(".BasicLauncher"),
        is_on_slurm=launcher.endswith(".submitit_launcher.SlurmLauncher"),
    )


def _direction_lines(job: Job, config: RunConfig) -> list[str]:
    """Returns the override that makes a sweeper optimize in the direction of the objective. Returns an empty list if
    the sweeper has no key for the direction, or if its direction is already correct.

    Raises ConfigError if the user has set the wrong direction.
    """
    key, sweeper = "hydra.sweeper.direction", job.config.hydra.sweeper
    if "direction" not in sweeper:
        return []
    from parallax_runner.driver.sweep_goal import goal_before_jobs

    goal = goal_before_jobs(config)
    found = getattr(sweeper.direction, "name", sweeper.direction)
    if found == goal.direction:
        return []
    if job.origins.of(key) is None:
        return [f"{key}={goal.direction}"]
    needed = (
        f"expected {goal.direction}, the direction of the objective «{goal.name}»; omit this key, or choose another "
        "objective with train.objective"
    )
    raise refusal(key, job.origins, needed, value=found)


def validated(job: Job) -> RunConfig:
    """Returns the resolved configuration of a job. Raises ConfigError for the first error."""
    composed, found = resolve_with_environment(job)
    return dataclasses.replace(validate(composed, job.origins), from_environment=found)


def checked_job(job: Job, giver: str = COMMAND_LINE) -> RunConfig:
    """Returns the resolved configuration of a job, and prints a note for each key that the job does not use. `giver`
    names the source of the overrides in these notes.

    Raises ConfigError for the first error."""
    config = validated(job)
    _print(unused(config, job.origins.given_by(giver)))
    return config


def _check_driver(config: RunConfig) -> None:
    """Checks that this process may start the driver of a run or the jobs of a sweep."""
    if action_of(config).runs_a_job:
        check_only_driver(config.cluster.launcher)


def _validated(jobs: Iterable[Job], *, needs_objective: bool = False) -> list[CheckedJob]:
    folders: set[Path] = set()
    checked = []
    notes: dict[str, str] = {}  # Maps each key to a note. A note that many jobs share is printed once.
    for job in jobs:
        title, overrides = as_typed(job.config.hydra)
        hydra = job.config.hydra
        try:
            config = validated(job)
            check_hydra(hydra, job.origins, config.run_dir)
            check_own_folders(config, job.origins, folders, values_are_known=not needs_objective)
            if needs_objective and not action_of(config).trains:
                raise refusal(
                    "action", job.origins, "this sweeper needs an objective, which only action=train provides"
                )
        except ConfigError as error:
            error.parts = dataclasses.replace(error.parts, job=job.title)
            raise
        for key, note in unused(config, job.origins).items():
            notes.setdefault(key, f"{job.title}{note}")
        checked.append(CheckedJob(config, title, overrides))
    _print(notes)
    return checked


def _print(notes: Mapping[str, str]) -> None:
    for note in notes.values():
        print(f"parallax_runner: {note}", file=sys.stderr)


def _swept(master: Master) -> dict[str, str]:
    swept = {str(key): str(value) for key, value in (master.config.hydra.sweeper.get("params") or {}).items()}
    for override in master.overrides:
        if override.is_sweep_override():
            swept[override.key_or_group] = str(override.input_line).partition("=")[2]
    return swept
