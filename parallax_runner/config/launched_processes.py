"""Reads from environment variables how many processes another launcher has started from one command.

Each of these processes would start a driver of its own, so the command would train several times.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from parallax_runner.errors import ConfigError
from parallax_runner.launch.launchers.slurm import allocation

TF_CONFIG = "TF_CONFIG"
SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Variables:
    """The variables that a launcher sets for each process that it starts.

    Attributes:
        launcher: the launcher's name, for messages.
        size: the variable with the number of processes, or None if the launcher sets only the rank.
        rank: the variable with the number of this process. A size without a rank is not a launcher's, because other
            programs use names such as WORLD_SIZE, too.
        instead: what the user can do instead of starting one process, for messages.
    """

    launcher: str
    size: str | None
    rank: str
    instead: str | None = None


@dataclass(frozen=True)
class World:
    """The processes that a launcher has started from one command. `variable` has told their number, which is at least
    `size`. `rank` is the number of this process, or None if it is not needed."""

    launcher: str
    variable: str
    value: str
    size: int
    rank: int | None
    instead: str | None = None

    @property
    def told(self) -> str:
        """The variable with its value, shortened for a message."""
        is_long = len(self.value) > SHOWN_CHARACTERS
        return f"{self.variable}={self.value[:SHOWN_CHARACTERS]}{'…' if is_long else ''}"


PADDLE_INIT = "call parallax_runner.paddle.init in the script"
# If several launchers have started a process, such as srun and then mpirun, the message names the first one here.
LAUNCHERS = (
    Variables("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),  # Open MPI
    Variables("mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),  # MVAPICH2
    Variables("mpirun", "MVP_COMM_WORLD_SIZE", "MVP_COMM_WORLD_RANK"),  # MVAPICH 3 and later
    Variables("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),  # IBM Spectrum LSF
    Variables("horovodrun", "HOROVOD_SIZE", "HOROVOD_RANK"),
    # SLURM_NTASKS belongs to the allocation, and the only process of a batch script has it too.
    Variables("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "set cluster=slurm"),
    Variables("mpirun", "PMI_SIZE", "PMI_RANK"),  # MPICH, Intel MPI, Cray
    Variables("a PMIx launcher", None, "PMIX_RANK"),  # PRRTE
    Variables("torchrun or a similar launcher", "WORLD_SIZE", "RANK"),
    Variables("paddle.distributed.launch", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ID"),
    Variables("Paddle", "PADDLE_INIT_NUM_GRADIENT_SERVERS", "PADDLE_INIT_TRAINER_ID", PADDLE_INIT),
    Variables("Paddle", "PADDLE_INIT_NUM_OF_GRADIENT_SERVERS", "PADDLE_INIT_TRAINER_ID", PADDLE_INIT),
)


def worlds(environ: Mapping[str, str] = os.environ) -> list[World]:
    """Returns the worlds of more than one process that this process belongs to. Raises ConfigError if TF_CONFIG is not
    JSON."""
    of_launchers = [_world(variables, environ) for variables in LAUNCHERS]
    found = [_of_tf_config(environ), *of_launchers]
    return [world for world in found if world is not None and world.size > 1]


def is_sruns_step(world: World, environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether these are the processes of the current step of a Slurm job. PMI, for example, sets variables of
    its own for the tasks of `srun`."""
    step = allocation.step_of(environ)
    return step is not None and step == (world.size, world.rank)


def _world(variables: Variables, environ: Mapping[str, str]) -> World | None:
    rank = _number(environ.get(variables.rank))
    if rank is None:
        return None
    if variables.size is None:
        return World(variables.launcher, variables.rank, str(rank), rank + 1, rank, variables.instead)
    size = _number(environ.get(variables.size))
    if size is None:
        return None
    return World(variables.launcher, variables.size, str(size), size, rank, variables.instead)


def _of_tf_config(environ: Mapping[str, str]) -> World | None:
    text = environ.get(TF_CONFIG)
    if not text:
        return None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{TF_CONFIG}: not JSON ({error}); correct it, or unset {TF_CONFIG}") from error
    return World(
        "a scheduler",
        TF_CONFIG,
        text,
        _processes_of(content),
        rank=None,
        instead="to train, start `python -m parallax_runner.worker` with the same settings in every process",
    )


def _processes_of(content: object) -> int:
    """Returns the number of processes that TF_CONFIG names. An evaluator is not a part of the cluster."""
    if not isinstance(content, dict):
        return 1
    cluster, task = content.get("cluster"), content.get("task")
    processes = 0
    if isinstance(cluster, dict):
        processes = sum(len(hosts) for hosts in cluster.values() if isinstance(hosts, list | dict))
    is_evaluator = isinstance(task, dict) and task.get("type") == "evaluator"
    return processes + 1 if is_evaluator else processes


def _number(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    return int(text)
