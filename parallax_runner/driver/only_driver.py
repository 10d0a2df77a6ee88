"""Refuses a second driver for one training: in a worker, and in processes that another launcher has started."""

from __future__ import annotations

import os
from collections.abc import Mapping

from parallax_runner.config.launched_processes import World, worlds
from parallax_runner.config.launchers import declared_by
from parallax_runner.errors import ConfigError, LaunchError
from parallax_runner.launch.control import wire

THIS_COMMAND = "this command"
ONCE = "start the command once, and set cluster.workers to the number of workers"


def check_only_driver(launcher: str) -> None:
    """Checks that the command of this process may start a driver. `launcher` is the run's `cluster.launcher`.

    Raises LaunchError or ConfigError if it may not, and SystemExit with status 0 in a surplus task of `srun`.
    """
    check_outside_workers(THIS_COMMAND)
    if is_surplus(launcher):
        raise SystemExit(0)
    check_started_once(launcher)


def check_outside_workers(what: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raises LaunchError if a worker or server of a run has started this process, directly or not. `what` is the
    function or command that would start a driver here."""
    if wire.CONTROL_ADDRESS in environ:
        raise LaunchError(
            f"{wire.CONTROL_ADDRESS} is set: this process belongs to a worker of another run, and {what} would start a "
            "run in each worker; a script that workers run again must not start a run in a child process"
        )


def check_started_once(launcher: str, *, once: str = ONCE, environ: Mapping[str, str] = os.environ) -> None:
    """Raises ConfigError if this process is one of several that another launcher has started, each of which would
    start a run of its own.

    `launcher` is the run's `cluster.launcher`. Processes that stand by accept only one driver. Of the tasks that the
    launcher's scheduler has started, one is the driver, and the others end (`is_surplus`). `once` tells the user how to
    start the training once.
    """
    declared = declared_by(launcher)
    if declared.processes_stand_by:
        return
    found = [world for world in worlds(environ) if not declared.takes_one_of(world, environ)]
    if found:
        raise _refusal(found[0], once)


def is_surplus(launcher: str) -> bool:
    """Returns whether the launcher's scheduler has started several tasks and this process is not the driver. `launcher`
    is the run's `cluster.launcher`."""
    return bool(declared_by(launcher).is_surplus())


def _refusal(world: World, once: str) -> ConfigError:
    remedy = once if world.instead is None else f"{world.instead}, or {once}"
    return ConfigError(
        f"{world.told}: {world.launcher} has started several processes, and each of them would start a run of its own; "
        f"{remedy} (if this is the only process, unset {world.variable})"
    )
