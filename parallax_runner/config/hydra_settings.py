"""Checks Hydra's own settings that can make Hydra fail when it runs a job, and explains other failures of Hydra."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from parallax_runner.config.explain import refusal, shown, typed
from parallax_runner.config.named_class import find_class
from parallax_runner.config.origins import Origins
from parallax_runner.config.validate import unwritable
from parallax_runner.errors import ConfigError, ParallaxError, StorageError, is_of_storage

CALLBACK = "hydra.experimental.callback.Callback"
FULL_ERROR = "HYDRA_FULL_ERROR"  # makes Hydra raise an error instead of printing it


def check_hydra(hydra: Any, origins: Origins, run_dir: str) -> None:
    """Raises ConfigError if Hydra would fail because of its own settings. `hydra` is the node with these settings."""
    _check_subdir(hydra, origins, run_dir)
    _check_verbose(hydra, origins)
    callbacks = _resolved(hydra, "callbacks", origins)
    if callbacks is not None and not isinstance(callbacks, Mapping):
        raise refusal("hydra.callbacks", origins, "expected a mapping from names to callbacks", value=callbacks)
    for name, content in (callbacks or {}).items():
        _check_callback(f"hydra.callbacks.{name}", content, origins)


def _check_subdir(hydra: Any, origins: Origins, run_dir: str) -> None:
    subdir = _resolved(hydra, "output_subdir", origins)
    reason = None if subdir is None else unwritable(os.path.join(run_dir, subdir))
    if reason is not None:
        raise refusal("hydra.output_subdir", origins, reason, value=subdir)


def _check_verbose(hydra: Any, origins: Origins) -> None:
    verbose = _resolved(hydra, "verbose", origins)
    is_list = isinstance(verbose, list) and all(isinstance(one, str) for one in verbose)
    if not isinstance(verbose, bool | str) and not is_list:
        expected = "expected true, false, the name of a logger, or a list of names"
        raise refusal("hydra.verbose", origins, expected, value=verbose)


def _check_callback(key: str, content: Any, origins: Origins) -> None:
    target = content.get("_target_") if isinstance(content, Mapping) else None
    expected = f"expected the dotted name of a class that extends {CALLBACK}"
    if not isinstance(target, str) or "." not in target:
        raise refusal(key if target is None else f"{key}._target_", origins, expected, value=target)
    try:
        find_class(target, built_in={}, group="", base=CALLBACK)
    except LookupError as error:
        raise refusal(f"{key}._target_", origins, str(error), value=target) from error


def _resolved(hydra: Any, name: str, origins: Origins) -> Any:
    try:
        value = OmegaConf.select(hydra, name)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:
        reason = f"the reference cannot be resolved: {str(error).splitlines()[0].rstrip('.')}"
        raise refusal(f"hydra.{name}", origins, reason) from error


@contextmanager
def explained(overrides: Sequence[str], job_file: str) -> Iterator[None]:
    """Turns an error that Hydra raises outside of a job into a ConfigError about the Hydra settings in `overrides`.

    An error whose traceback has a frame in `job_file`, the file that runs jobs, is not changed. Raises StorageError if
    the disk is the cause."""
    before = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"
    try:
        yield
    except ParallaxError:
        raise
    except Exception as error:
        is_of_job = any(frame.f_code.co_filename == job_file for frame, _ in traceback.walk_tb(error.__traceback__))
        given = [word for word in overrides if word.lstrip("+~").startswith("hydra")]
        if not is_of_job and given:
            told = " ".join(str(error).split()).rstrip(".")
            fails = f"Hydra fails with {'this setting' if len(given) == 1 else 'these settings'}"
            about = typed(shown(" ".join(given)))
            raise ConfigError(f"{fails}: {type(error).__name__}: {shown(told)}", about=about) from error
        if not is_of_job and is_of_storage(error):
            raise StorageError(f"Hydra cannot create the run directory: {error}") from error
        raise
    finally:
        if before is None:
            os.environ.pop(FULL_ERROR, None)
        else:
            os.environ[FULL_ERROR] = before
