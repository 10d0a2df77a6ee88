"""Chooses what carries messages among ranks."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from parallax_runner.collectives.backend import Backend, Lack
from parallax_runner.collectives.chosen import BACKENDS, DEFAULT
from parallax_runner.config.cluster_size import devices_of_worker
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.launchers import declared_by
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.submission import submission_of
from parallax_runner.errors import ConfigError, Setting

KEY = "comm.backend"
ALLGATHERV = "comm.mpi.use_allgatherv"
ALLGATHERV_NOTE = f"sparse gradients are gathered by MPI's Allgatherv: {ALLGATHERV}=true"


@dataclass(frozen=True)
class ChosenBackend:
    """The name of a backend, and the reason for the choice."""

    name: str
    reason: str

    @property
    def note(self) -> str:
        """What a plan tells about the choice."""
        return f"tensors are exchanged by {BACKENDS[self.name].title}: {self.reason}"


def chosen_backend(config: RunConfig) -> ChosenBackend:
    """Returns the backend of a run, whose cluster must be sized.

    Raises ConfigError if the backend that the user asks for cannot work on this cluster or this host, or if none can.
    A run that is submitted starts no process on this host, which may then lack what the backend needs.
    """
    mode = mode_of(config.comm)
    if mode.is_one_process or mode.is_all_on_servers:
        return ChosenBackend(_unused(config), f"comm={config.comm.name} exchanges nothing among ranks")
    return working_backend(config)


def _unused(config: RunConfig) -> str:
    """Returns the backend of ranks that exchange nothing: one that the cluster does not exclude, because a launcher
    without mpirun asks it for the variables of the ranks. Nothing of it needs to be installed."""
    return next((name for name, backend in BACKENDS.items() if _limit(backend, config) is None), DEFAULT)


def working_backend(config: RunConfig) -> ChosenBackend:
    """Returns the backend of ranks that exchange tensors, whatever the mode. Raises the errors of `chosen_backend`."""
    asked: str = config.comm.backend
    if asked not in BACKENDS:
        return _first_that_works(config)
    _refuse_unusable(asked, config)
    return ChosenBackend(asked, f"{KEY}={asked}")


def _refuse_unusable(name: str, config: RunConfig) -> None:
    setting, limit = Setting.of(KEY, name), _limit(BACKENDS[name], config)
    others = [other for other, backend in BACKENDS.items() if other != name and _limit(backend, config) is None]
    use_another = [f"use {KEY}={other}" for other in others]
    if limit is not None:
        raise ConfigError(limit).about(setting, remedy=", or ".join(use_another))
    lack = _lack(BACKENDS[name], config)
    if lack is not None:
        raise ConfigError(lack.reason).about(setting, remedy=", or ".join([lack.remedy, *use_another]))


def _first_that_works(config: RunConfig) -> ChosenBackend:
    """Returns the first backend that works. The reason tells what keeps those before it from working."""
    setting = Setting.of(KEY, config.comm.backend)
    reasons: list[str] = []
    remedies: list[str] = []
    for name, backend in BACKENDS.items():
        limit = _limit(backend, config)
        if limit is not None:
            reasons.append(limit)
            continue
        lack = _lack(backend, config)
        if lack is None:
            return ChosenBackend(name, ", and ".join([str(setting), *reasons]))
        reasons.append(lack.reason)
        remedies.append(lack.remedy)
    raise ConfigError(", and ".join(reasons)).about(setting, remedy=", or ".join(remedies))


def _limit(backend: Backend, config: RunConfig) -> str | None:
    """Returns why a backend cannot work on this cluster, whatever is installed, or None."""
    if devices_of_worker(config.cluster)["GPU"] and not backend.takes_gpus:
        return f"workers use GPUs, which {backend.title} do not support"
    if backend.needs_mpirun and declared_by(config.cluster.launcher).without_mpirun:
        return f"{backend.title} need mpirun, which cluster={config.cluster.launcher} does not use"
    return None


def _lack(backend: Backend, config: RunConfig) -> Lack | None:
    """Returns what this host lacks, or None. A host that submits the run starts no process."""
    return backend.lack() if submission_of(config) is None else None


def check_allgatherv(config: RunConfig) -> None:
    """Raises ConfigError if the user asks for MPI's Allgatherv, and this host lacks the package that calls it. As
    Horovod, it is not installed unless the user asks for it."""
    is_needed = config.comm.mpi.use_allgatherv and submission_of(config) is None
    if is_needed and importlib.util.find_spec("mpi4py") is None:
        raise ConfigError("mpi4py is not installed").about(
            Setting.of(ALLGATHERV, True), remedy=f"install it (scripts/setup --horovod), or set {ALLGATHERV}=false"
        )
