"""Chooses what carries messages among ranks."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_runner.collectives.chosen import BACKENDS, DEFAULT
from parallax_runner.config.cluster_size import devices_of_worker
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import ConfigError, Setting

KEY = "comm.backend"
NATIVE = "native"


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

    Raises ConfigError or CollectiveError if `comm.backend=native` cannot work on this cluster or this machine. A
    launcher without mpirun is refused earlier (config/rules/comm.py).
    """
    mode = mode_of(config.comm)
    asked: str = config.comm.backend
    if mode.is_one_process or mode.is_all_on_servers:
        return ChosenBackend(DEFAULT, f"comm={config.comm.name} exchanges nothing among ranks")
    if asked == NATIVE:
        _refuse_native_if_unusable(config)
    return ChosenBackend(DEFAULT if asked == "auto" else asked, f"{KEY}={asked}")


def _refuse_native_if_unusable(config: RunConfig) -> None:
    if devices_of_worker(config.cluster)["GPU"]:
        raise ConfigError("workers use GPUs, for which there are no native exchanges").about(
            Setting.of(KEY, NATIVE), remedy="use comm.backend=horovod"
        )
    BACKENDS[NATIVE].check()
