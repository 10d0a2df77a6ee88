"""Composes a job of a sweep as Hydra's launchers do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import open_dict, read_write

from parallax_runner.config.compose import Job, as_typed, resolve
from parallax_runner.config.frozen import run_config
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig


@dataclass(frozen=True)
class LaunchedJob:
    """A composed job. `title` and `overrides` are as in `compose.as_typed`; `hydra_overrides` are the overrides of
    Hydra's own keys, as the user typed them."""

    config: RunConfig
    title: str
    overrides: tuple[str, ...]
    hydra_overrides: tuple[str, ...]


def compose_launched(loader: Any, sweep_config: Any, overrides: Sequence[str], number: int) -> LaunchedJob:
    """Composes job `number` of a sweep with `loader`, Hydra's configuration loader. Raises ConfigError if the job's
    configuration cannot be resolved."""
    composed = loader.load_sweep_config(sweep_config, list(overrides))
    with read_write(composed), open_dict(composed):
        composed.hydra.job.id, composed.hydra.job.num = str(number), number
    title, typed = as_typed(composed.hydra)
    hydra_overrides = tuple(map(str, composed.hydra.overrides.hydra))
    return LaunchedJob(run_config(resolve(Job(composed, Origins([], [])))), title, typed, hydra_overrides)
