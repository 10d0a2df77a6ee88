"""Chooses what carries messages among ranks."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_runner.collectives.chosen import BACKENDS, DEFAULT
from parallax_runner.config.cluster_size import devices_of_worker
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.launchers import declared_by
from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import CollectiveError, ConfigError, Setting

KEY = "comm.backend"
NATIVE = "native"
# Backends from the most preferred to the one that always works.
PREFERRED = (DEFAULT,)


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

    Raises ConfigError or CollectiveError if `comm.backend=native` cannot work on this cluster or this machine.
    """
    mode = mode_of(config.comm)
    asked: str = config.comm.backend
    if mode.is_one_process or mode.is_all_on_servers:
        return ChosenBackend(DEFAULT, f"comm={config.comm.name} exchanges nothing among ranks")
    if asked == NATIVE:
        _refuse_native_if_unusable(config)
    if asked != "auto":
        return ChosenBackend(asked, f"{KEY}={asked}")
    return _by_default(config)


def _by_default(config: RunConfig) -> ChosenBackend:
    if NATIVE not in PREFERRED:
        return ChosenBackend(DEFAULT, f"{KEY}=auto")
    reason = why_not_native(config)
    if reason is not None:
        return ChosenBackend(DEFAULT, f"{KEY}=auto, and {reason}")
    return ChosenBackend(NATIVE, f"{KEY}=auto, and workers use CPUs")


def why_not_native(config: RunConfig) -> str | None:
    """Returns the reason why the native exchanges cannot be used, or None if they can."""
    if declared_by(config.cluster.launcher).without_mpirun:
        return f"cluster={config.cluster.launcher} uses no mpirun, which the native exchanges need"
    if devices_of_worker(config.cluster)["GPU"]:
        return "workers use GPUs, for which there are no native exchanges"
    try:
        BACKENDS[NATIVE].check()
    except CollectiveError as error:
        return error.parts.reason
    return None


def _refuse_native_if_unusable(config: RunConfig) -> None:
    if devices_of_worker(config.cluster)["GPU"]:
        raise ConfigError("workers use GPUs, for which there are no native exchanges").about(
            Setting.of(KEY, NATIVE), remedy="use comm.backend=horovod"
        )
    BACKENDS[NATIVE].check()
