"""The keys of group `data` that all choices of `data` share."""

import os
from typing import Any

from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.files.access import unreadable


def check_data(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for an invalid batch size, seed or way to resume, or for data that cannot be read."""
    data = config.data
    _check_batch_size(config, origins)
    seed = data.get("seed")
    if isinstance(seed, int) and seed < 0:
        raise refusal("data.seed", origins, "expected an integer, at least 0", value=seed)
    if data.get("resume", "exact") not in ("exact", "approximate"):
        raise refusal("data.resume", origins, "expected exact or approximate", value=data["resume"])
    for name, path in data.items():
        if path is not None and _is_of_files(str(name)):
            _check_path(str(name), path, origins)


def _check_batch_size(config: RunConfig, origins: Origins) -> None:
    batch_size = config.data.get("batch_size")
    if batch_size is None and not _source_needs_batch_size(origins):
        return  # the driver derives the batch size from the batches of a tf.data.Dataset
    if type(batch_size) is not int or batch_size < 1:  # Python's bool is an int
        raise refusal("data.batch_size", origins, "expected an integer, at least 1", value=batch_size)


def _source_needs_batch_size(origins: Origins) -> bool:
    """Returns whether the file of the data source declares a batch size. The file of a source that has batches of its
    own declares none."""
    of_source = [file for file in origins.files if file.group == "data"]
    return any(file.values.get("data.batch_size") is not None for file in of_source)


def _is_of_files(name: str) -> bool:
    return name in ("path", "cache_dir") or name.endswith("_path")


def _check_path(name: str, path: Any, origins: Origins) -> None:
    key = f"data.{name}"
    if not isinstance(path, str):
        hint = f"{key}=\"'{path}'\""
        raise refusal(key, origins, "expected a path, as a string", hint=hint, value=path)
    if name == "cache_dir":  # a run creates this folder
        return
    reason = unreadable(os.path.expanduser(path))
    if reason is not None:
        raise refusal(key, origins, reason, value=path)
