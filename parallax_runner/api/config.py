"""The configuration of `parallel_run`, with the names and defaults of the original Parallax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class PSConfig:
    """For run_option PS and HYBRID: how workers and servers communicate, and how they divide the work.

    An option that is True by default is ignored where it can have no effect. For example, `replicate_variables` applies
    only to PS with sync=True and without backup workers.
    """

    protocol: str = "grpc"
    replicate_variables: bool = True
    local_aggregation: bool = True
    boundary_among_servers: bool = True
    boundary_between_workers_and_servers: bool = True


@dataclass
class MPIConfig:
    """For run_option MPI and HYBRID. `mpirun_options` is a list of strings, or a string that is split as a shell would
    split it."""

    use_allgatherv: bool = False
    mpirun_options: str | Sequence[str] = ""


@dataclass
class CommunicationConfig:
    """The communication options of servers and of MPI."""

    ps_config: PSConfig = field(default_factory=PSConfig)
    mpi_config: MPIConfig = field(default_factory=MPIConfig)


@dataclass
class CheckPointConfig:
    """Where checkpoints are written (by default `run_dir/ckpt`), and how often."""

    ckpt_dir: str | None = None
    save_ckpt_steps: int | None = None
    save_ckpt_secs: float | None = None


@dataclass
class ProfileConfig:
    """The steps whose RunMetadata is written, as a list or as a range [start, end), and the worker that writes the
    RunMetadata (None: all workers)."""

    profile_dir: str | None = None
    profile_steps: Sequence[int] | None = None
    profile_range: tuple[int, int] | None = None
    profile_worker: int | None = None


@dataclass
class Config:
    """The `parallax_config` of `parallel_run`.

    The first eight fields and `export_graph_path` are the same as in the original Parallax. The other fields are:
    `run_dir`, the folder for the files of the run; `hooks`, the `tf.train.SessionRunHook`s that run in all workers;
    `chief_only_hooks`, the hooks that run only in worker 0; `tracking`, the URI of a tracking store or False to record
    nothing (default: the same as on the command line); `overrides`, further settings in command-line syntax, such as
    `train.max_restarts=2`.
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
