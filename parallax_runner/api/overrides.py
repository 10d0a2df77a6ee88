"""Translates a `Config` into command-line overrides."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from parallax_runner.api.config import Config, ProfileConfig
from parallax_runner.config.comm_mode import choices, mode_with
from parallax_runner.config.hydra_quotes import in_quotes
from parallax_runner.errors import ConfigError, Setting

RUN_OPTIONS = {"PS": "ps", "MPI": "mpi", "HYBRID": "hybrid"}
# The options of PSConfig. With servers, an option sets the key of the same name in `comm.ps`.
PS_OPTIONS = (
    "protocol",
    "replicate_variables",
    "local_aggregation",
    "boundary_among_servers",
    "boundary_between_workers_and_servers",
)
# Options that are passed on only if all variables are on servers.
ALL_ON_SERVERS_ONLY = ("replicate_variables", "local_aggregation")
# Options that are passed on only if each step waits for every worker.
WAITING_ONLY = ("replicate_variables",)
BACKUP = "comm.ps.backup_workers="


def overrides_of(
    config: Config, *, resource_info: str | Sequence[str] | None, sync: bool, has_partitioner: bool
) -> list[str]:
    """Returns the overrides that correspond to `config`. Raises ConfigError if a value cannot be translated."""
    lines = [
        "model=script",
        "train.steps=null",
        "cluster.soft_placement=true",
        f"comm={_comm(config.run_option)}",
        f"comm.sync={value_of(bool(sync))}",
        *([f"comm.average_sparse={value_of(bool(config.average_sparse))}"] if sync else []),
        *_communication(config, comm=_comm(config.run_option), sync=bool(sync)),
        *_checkpoints(config),
        *_profile(config.profile_config),
    ]
    if resource_info is not None:
        lines.append(f"cluster.resource_info={value_of(_hosts(resource_info))}")
    if config.search_partitions and has_partitioner:
        lines.append("partition=search")
    for key in ("redirect_path", "export_graph_path"):
        path = getattr(config, key)
        if path:
            lines.append(f"{key}={value_of(_absolute(path))}")
    if config.run_dir:
        lines.append(f"hydra.run.dir={value_of(os.path.expanduser(config.run_dir))}")
    if config.tracking is False:
        lines.append("tracking=off")
    elif isinstance(config.tracking, str):
        lines.append(f"tracking.uri={value_of(config.tracking)}")
    return [*lines, *config.overrides]


def _hosts(resource_info: str | Sequence[str]) -> Any:
    """Returns the absolute path of a file of hosts. Text with several lines, and a list of lines, are returned as they
    are."""
    is_file = isinstance(resource_info, str | os.PathLike) and "\n" not in str(resource_info)
    return _absolute(str(resource_info)) if is_file else resource_info


def _comm(run_option: Any) -> str:
    if run_option is None:
        return "hybrid"
    # If the user's code has a trailing comma, as in an example of the original Parallax, the value is a tuple.
    if isinstance(run_option, tuple | list) and len(run_option) == 1:
        return _comm(run_option[0])
    comm = RUN_OPTIONS.get(str(run_option).upper())
    if comm is None:
        raise ConfigError("expected PS, MPI or HYBRID").about(
            Setting("run_option", repr(run_option), where="parallax.Config")
        )
    return comm


def _communication(config: Config, *, comm: str, sync: bool) -> Iterator[str]:
    ps, mpi = config.communication_config.ps_config, config.communication_config.mpi_config
    waits_for_all = sync and not any(map(_has_backup_workers, config.overrides))
    mode = mode_with(choices()[comm])
    for option in PS_OPTIONS if mode.has_servers else ():
        is_used = mode.is_all_on_servers or option not in ALL_ON_SERVERS_ONLY
        if is_used and (waits_for_all or option not in WAITING_ONLY):
            yield f"comm.ps.{option}={value_of(getattr(ps, option))}"
    if mpi.use_allgatherv:
        yield "comm.mpi.use_allgatherv=true"
    if mpi.mpirun_options:
        yield f"comm.mpi.mpirun_options={value_of(mpi.mpirun_options)}"


def _has_backup_workers(line: str) -> bool:
    return line.startswith(BACKUP) and line != f"{BACKUP}0"


def _checkpoints(config: Config) -> Iterator[str]:
    ckpt = config.ckpt_config
    if ckpt.ckpt_dir:
        yield f"ckpt.dir={value_of(_absolute(ckpt.ckpt_dir))}"
    if ckpt.save_ckpt_steps is not None:
        yield f"ckpt.save_steps={value_of(ckpt.save_ckpt_steps)}"
        if ckpt.save_ckpt_secs is None:
            yield "ckpt.save_secs=null"
    if ckpt.save_ckpt_secs is not None:
        yield f"ckpt.save_secs={value_of(ckpt.save_ckpt_secs)}"


def _profile(profile: ProfileConfig) -> Iterator[str]:
    # Empty values turn profiling off, because the scripts of the original Parallax pass empty flags.
    steps, bounds = ([] if given is None else list(given) for given in (profile.profile_steps, profile.profile_range))
    if steps and bounds:
        raise ConfigError("profile_steps and profile_range (parallax.ProfileConfig): set only one of the two")
    if not steps and not bounds:
        return
    if steps:
        yield "profile=steps"
        yield f"profile.steps={value_of(steps)}"
    else:
        yield "profile=range"
        yield f"profile.range={value_of(bounds)}"
    if profile.profile_dir:
        yield f"profile.dir={value_of(_absolute(profile.profile_dir))}"
    if profile.profile_worker is not None:
        yield f"profile.worker={value_of(profile.profile_worker)}"


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(os.path.expanduser(path))


def value_of(value: Any) -> str:
    """Formats a value in Hydra's grammar. Raises ConfigError for a string that Hydra would read as an interpolation."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(value_of, value)) + "]"
    if "${" in str(value):
        raise ConfigError(f"{value}: ${{…}} cannot be passed to Hydra, which would read it as an interpolation")
    return in_quotes(str(value))
