"""Hydra's own settings that can make Hydra fail when it runs a job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from parallax_runner.config.explain import refusal
from parallax_runner.config.named_class import find_class
from parallax_runner.config.origins import Origins
from parallax_runner.files.access import unwritable

CALLBACK = "hydra.experimental.callback.Callback"


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
