"""The configuration of `parallel_run`, with the original's names and defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class PSConfig:
    """For run_option PS and HYBRID: how workers and servers talk, and what is done where.

    What is True by default is on where it can have an effect: `replicate_variables` under PS with sync=True and without
    backup workers only.
    """

    protocol: str = "grpc"
    replicate_variables: bool = True
    local_aggregation: bool = True
    boundary_among_servers: bool = True
    boundary_between_workers_and_servers: bool = True


@dataclass
class MPIConfig:
    """For run_option MPI and HYBRID. `mpirun_options` is a string, split as a shell does, or a list of strings."""

    use_allgatherv: bool = False
    mpirun_options: str | Sequence[str] = ""


@dataclass
class CommunicationConfig:
    """Both of the above."""

    ps_config: PSConfig = field(default_factory=PSConfig)
    mpi_config: MPIConfig = field(default_factory=MPIConfig)


@dataclass
class CheckPointConfig:
    """Where checkpoints are, in `run_dir/ckpt` by default, and how often one is written."""

    ckpt_dir: str | None = None
    save_ckpt_steps: int | None = None
    save_ckpt_secs: float | None = None


@dataclass
class ProfileConfig:
    """Of which steps RunMetadata is kept: a list, or a range [start, end); on all workers, or on one."""

    profile_dir: str | None = None
    profile_steps: Sequence[int] | None = None
    profile_range: tuple[int, int] | None = None
    profile_worker: int | None = None


@dataclass
class Config:
    """What `parallel_run` takes as `parallax_config`.

    The first eight and `export_graph_path` are the original's. Beside them: `run_dir`, what the run leaves behind;
    `hooks`, `tf.train.SessionRunHook`s of all workers, and `chief_only_hooks`, of worker 0 alone; `tracking`, False for
    none, or the address of a tracking store (the command line's by default); `overrides`, any further settings as on
    the command line, such as `train.max_restarts=2`.
    """

    run_option: str | None = None
    average_sparse: bool = False
    sess_config: Any = None
    redirect_path: str | None = None
    search_partitions: bool = False
    communication_config: CommunicationConfig = field(default_factory=CommunicationConfig)
    ckpt_config: CheckPointConfig = field(default_factory=CheckPointConfig)
    profile_config: ProfileConfig = field(default_factory=ProfileConfig)
    export_graph_path: str | None = None
    run_dir: str | None = None
    hooks: Sequence[Any] = ()
    chief_only_hooks: Sequence[Any] = ()
    tracking: bool | str | None = None
    overrides: Sequence[str] = ()


ParallaxConfig = Config
