"""The entry point of `python -m parallax_runner.worker` and `.server` for processes that no driver has started."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from parallax_runner.errors import ConfigError, ParallaxError
from parallax_runner.frontdoors.door import FrontDoor, Task
from parallax_runner.frontdoors.with_driver import run_several, run_with_driver
from parallax_runner.launch.launchers.manual.rendezvous import EXPECTED
from parallax_runner.launch.launchers.manual.stand_by import DEFAULT_TIMEOUT_SECS, stand_by

# Options come first, because they take precedence over variables.
DOORS = ("cluster_spec.ClusterSpec", "paddle.flags.Paddle", "tf_config.TfConfig")


def start(role: str, argv: Sequence[str]) -> int:
    """Runs a worker or server according to the arguments and the environment. Returns the exit status."""
    try:
        return _start(role, argv)
    except ParallaxError as error:
        print(f"parallax_runner.{role}: {error}", file=sys.stderr)
        return error.exit_status


def _start(role: str, argv: Sequence[str]) -> int:
    doors = [_door(name) for name in DOORS]
    parser = _parser(role, doors)
    asked, settings = parser.parse_known_args(argv)
    _refuse_misspelt(settings, parser)
    index = asked.rank if role == "worker" else asked.index
    if asked.rendezvous is not None:
        if settings:
            raise ConfigError(f"{settings[0]}: this is not an option. Pass settings to the driver instead")
        return stand_by(
            role,
            asked.rendezvous,
            index,
            address=asked.address,
            timeout_secs=asked.timeout_secs,
            leave_secs=asked.leave_secs,
        )
    task = next(filter(None, (door.task(role, asked, os.environ) for door in doors)), None)
    if task is None:
        raise ConfigError(f"--rendezvous is missing: {EXPECTED}; or set another system's options (--help) or TF_CONFIG")
    if index is not None:
        raise ConfigError(
            "--rank, --index: omit them, because the other options or TF_CONFIG already identify this process"
        )
    return _take_part(dataclasses.replace(task, address=asked.address or task.address), asked.timeout_secs, settings)


def _take_part(task: Task, timeout_secs: float, settings: Sequence[str]) -> int:
    task.prepare()
    if task.starts_driver:
        return run_with_driver([*task.driver_settings(), *settings], task.worker_options(timeout_secs))
    if task.count > 1:
        return run_several(f"parallax_runner.{task.role}", task.worker_options(timeout_secs), task.count)
    return stand_by(task.role, task.rendezvous, task.index, address=task.address, timeout_secs=timeout_secs)


def _refuse_misspelt(settings: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Raises ConfigError for a misspelt option. A driver would reject it as an invalid setting, but only rank 0 starts
    a driver."""
    own = [option for action in parser._actions for option in action.option_strings]
    for word in settings:
        near = difflib.get_close_matches(word.partition("=")[0], own, n=1, cutoff=0.8) if word.startswith("--") else []
        if near:
            raise ConfigError(f"{word}: there is no such option. Did you mean {near[0]}?")


def _door(name: str) -> type[FrontDoor]:
    module, _, attribute = name.rpartition(".")
    found: type[FrontDoor] = getattr(importlib.import_module(f"parallax_runner.frontdoors.{module}"), attribute)
    return found


def _parser(role: str, doors: Sequence[type[FrontDoor]]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m parallax_runner.{role}",
        description=f"Stands by as a {role} for a driver with cluster=manual. Processes may start in any order. If "
        "another system's flags or environment variable describe the processes, rank 0 starts a driver with the given "
        "settings.",
        allow_abbrev=False,
    )
    parser.add_argument("--rendezvous", metavar="ADDRESS", help=EXPECTED.removeprefix("expected "))
    number = "--rank" if role == "worker" else "--index"
    parser.add_argument(number, type=int, default=None, help="number of this process; default: chosen by the driver")
    parser.add_argument("--address", default=None, help="address that the other processes use to reach this machine")
    parser.add_argument(
        "--timeout-secs", type=float, default=DEFAULT_TIMEOUT_SECS, help="seconds to wait for a driver (%(default)g)"
    )
    parser.add_argument(
        "--leave-secs",
        type=float,
        default=0.0,
        help="seconds after SIGTERM in which the driver may save a checkpoint (%(default)g)",
    )
    for door in doors:
        door.add_options(parser)
    return parser
