"""Finds the origins of the running job's keys, for errors that occur after Hydra has started the job."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from parallax_runner.config.compose import Composer
from parallax_runner.config.origins import Origins
from parallax_runner.errors import COMMAND_LINE

_of_call: ContextVar[Origins | None] = ContextVar("_of_call", default=None)


@contextmanager
def job_of_call(origins: Origins) -> Iterator[None]:
    """Makes `origins` the origins of the running job, for a function such as `fit`, which runs a job without Hydra."""
    token = _of_call.set(origins)
    try:
        yield
    finally:
        _of_call.reset(token)


def is_of_call() -> bool:
    """Returns whether a function such as `fit` runs the job, so that Hydra's global state is not that of the job."""
    return _of_call.get() is not None


def origins_of_running_job() -> Origins | None:
    """Returns the origins of the running job's keys, or None if this process runs no job, as in a worker or a test."""
    if (of_call := _of_call.get()) is not None:
        return of_call
    settings: Any = HydraConfig.instance().cfg
    if settings is None or not settings.hydra.job.config_name:
        return None
    hydra = settings.hydra
    folders = {source.provider: source.path for source in hydra.runtime.config_sources if source.schema == "file"}
    composer = Composer(hydra.job.config_name, folders.get("main"), folders.get(COMMAND_LINE.replace(" ", "-")))
    # Not resolved: a value of the environment can be a secret, and need not be in Hydra's syntax.
    overrides: Any = OmegaConf.to_container(hydra.overrides, resolve=False)
    return composer.job([*overrides["hydra"], *overrides["task"]]).origins
