"""Checks conditions that types cannot express: ranges, files that must exist, and combinations of choices."""

import dataclasses
import os
import re
import shlex
from collections.abc import Mapping, MutableSet
from pathlib import Path
from typing import Any, get_origin

from omegaconf import DictConfig, ListConfig, OmegaConf

from parallax_runner.config.cluster_size import check_cluster
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import describe, known_keys, refusal, unknown_key, written
from parallax_runner.config.frozen import SCRIPT, as_written
from parallax_runner.config.launchers import check_launcher
from parallax_runner.config.learning_rates import check_learning_rates
from parallax_runner.config.origins import Origins
from parallax_runner.config.profile_rules import check_profile
from parallax_runner.config.rendezvous import check_rendezvous
from parallax_runner.config.schema import FREE_GROUPS, RunConfig
from parallax_runner.config.structured import STRUCTURED, group_in, optional_groups
from parallax_runner.config.sweep_keys import check_sweep_keys
from parallax_runner.config.trackers import check_tracking
from parallax_runner.config.unused_keys import without_unused
from parallax_runner.config.validate_backup import check_backup
from parallax_runner.config.validate_epochs import check_epochs
from parallax_runner.config.validate_partition import check_barrier, check_partition
from parallax_runner.files.regular import kind_of
from parallax_runner.files.text_encoding import undecoded

KERNEL = (("/", "proc"), ("/", "sys"))  # file systems in which folders cannot be created
BELOW_BYTES = 256  # bytes of a path that are reserved for files below the run directory


def validate(composed: DictConfig, origins: Origins) -> RunConfig:
    """Checks a resolved configuration, and returns it as a RunConfig.

    Raises ConfigError for the first error.
    """
    for group in FREE_GROUPS:
        _check_free_group(composed, group, origins)
    _check_fields(composed, STRUCTURED, "", origins, composed)
    given = as_written(composed)
    config = without_unused(given)
    _check_steps(config, origins)
    check_cluster(config, origins)
    check_rendezvous(config, origins)
    _check_comm(config, origins)
    check_epochs(config, origins)
    check_launcher(config, origins)
    check_backup(config, origins)
    check_partition(given, origins)  # values that contradict each other are wrong even if the choice has no effect
    check_barrier(config, origins)
    _check_data(config, origins)
    check_learning_rates(config, origins)
    check_profile(given, origins)
    _check_resume(config, origins)
    _check_folders(config, origins)
    _check_simulate(config, origins)
    check_sweep_keys(config, origins)
    check_tracking(config, origins)
    _check_sync(config, origins)
    return config


def validate_sweep(
    config: RunConfig, origins: Origins, folders: MutableSet[Path], *, values_are_known: bool = True
) -> None:
    """Raises ConfigError for a job that would write to the folder of an earlier job of the sweep.

    Adds the job's folders to `folders`. If a sweeper has not chosen the job's values yet (`values_are_known` is
    false), run_dir is not checked, because its name may contain these values.
    """
    run_dir = Path(config.run_dir).absolute()
    # In a shared ckpt.dir a job would resume from another job's checkpoint, and shared logs would be mixed up.
    writes = {
        "run_dir": config.run_dir if values_are_known else None,
        "ckpt.dir": config.ckpt.dir if config.ckpt.enabled and config.action == "train" else None,
        "profile.dir": config.profile.dir if config.profile.name != "off" else None,
        "redirect_path": config.redirect_path,
        "export_graph_path": config.export_graph_path,
    }
    for key, path in writes.items():
        if path is None:
            continue
        folder = Path(path).absolute()
        if folder in folders and not (key != "run_dir" and folder.is_relative_to(run_dir)):
            reason = "every job of a sweep needs its own folder; add ${hydra:job.num} to the path"
            raise refusal(key, origins, reason)
        folders.add(folder)


def _check_fields(node: Any, schema: Any, prefix: str, origins: Origins, whole: DictConfig) -> None:
    """Checks the keys of `node`, a part of the configuration `whole`, against `schema`."""
    fields = {entry.name: entry for entry in dataclasses.fields(schema)}
    for name in node:
        key = f"{prefix}{name}"
        if name not in fields:
            inner = [] if origins.of(key) else origins.given(key)  # +trian.steps=5 sets only the inner key
            raise unknown_key(inner[-1] if inner else key, origins, _known(whole, origins))
        entry = fields[name]
        if OmegaConf.is_missing(node, name):
            raise refusal(key, origins, f"this key has no value; {describe(entry)}", value="???")
        value = node[name]
        group = entry.type if dataclasses.is_dataclass(entry.type) else group_in(entry.type)
        if group is not None and value is not None:
            _check_fields(value, group, f"{key}.", origins, whole)
        elif get_origin(entry.type) is not dict and value is not None:
            _check_range(key, value, entry, origins)


def _known(whole: DictConfig, origins: Origins) -> list[str]:
    """Returns the keys of a configuration that the schema or a file of `model`, `data` or `optimizer` declares. The
    configuration may also have unknown keys, which the user added with a plus sign."""
    declared = {key for file in origins.files if file.group in FREE_GROUPS for key in file.values}
    declared.update(known_keys(OmegaConf.structured(STRUCTURED)))
    for parent, group in optional_groups(STRUCTURED):
        declared.update(f"{parent}.{entry.name}" for entry in dataclasses.fields(group))
    return [key for key in known_keys(whole) if key in declared]


def _check_range(key: str, value: Any, entry: "dataclasses.Field[Any]", origins: Origins) -> None:
    metadata = entry.metadata
    fits = (
        value in metadata.get("choices", (value,))
        and ("minimum" not in metadata or value >= metadata["minimum"])
        and ("above" not in metadata or value > metadata["above"])
        and ("maximum" not in metadata or value <= metadata["maximum"])
    )
    if not fits:
        raise refusal(key, origins, f"{describe(entry)}{_remark(value, metadata)}", value=value)


def _remark(value: Any, metadata: Mapping[str, Any]) -> str:
    """Returns the end of a message about a value that does not fit: what replaces a value of earlier versions, or how a
    file must contain «on» and «off». Returns an empty string for all other values."""
    replacement = metadata.get("replaced", {}).get(str(value))
    if replacement is not None:
        return f"; {replacement}"
    if value in ("True", "False") and "off" in metadata.get("choices", ()):
        return "; put on and off in quotes in a file, where YAML reads them as true and false"
    return ""


def _check_free_group(config: DictConfig, group: str, origins: Origins) -> None:
    """Raises ConfigError if `model`, `data` or `optimizer` has a key that its own file lacks, or a value whose type
    differs from the type in that file."""
    declared: dict[str, Any] = {}
    for file in origins.files:
        if file.group == group:
            declared.update({key: value for key, value in file.values.items() if key.startswith(f"{group}.")})
    known = [*declared, *origins.added()]
    for key in known_keys(config):
        if not key.startswith(f"{group}."):
            continue
        open_mapping = declared.get(key.rpartition(".")[0]) == {}
        if key not in known and not open_mapping:
            raise unknown_key(key, origins, [*declared, *known_keys(config)] if not declared else list(declared))
        _check_kind(config, key, declared.get(key), origins)
    if not isinstance(OmegaConf.select(config, f"{group}._target_"), str):
        raise refusal(f"{group}._target_", origins, "expected the dotted name of a function or class")
    if OmegaConf.select(config, f"{group}._partial_"):
        needed = "the function is called once, with all of its arguments; omit this key"
        raise refusal(f"{group}._partial_", origins, needed, value=True)


def _check_kind(config: DictConfig, key: str, example: Any, origins: Origins) -> None:
    """Raises ConfigError if a value's type differs from its type in the group's own file. null matches every type."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent)
    if OmegaConf.is_missing(node, name):
        raise refusal(key, origins, f"this key has no value; add {key}=VALUE", value="???")
    value = node[name]
    kinds: dict[type, tuple[str, tuple[type, ...]]] = {
        bool: ("true or false", (bool,)),
        int: ("an integer", (int,)),
        float: ("a number", (int, float)),
        str: ("a string", (str,)),
        list: ("a list", (ListConfig,)),
        dict: ("a mapping", (DictConfig,)),
    }
    reference = re.fullmatch(r"\$\{([\w.]+)\}", str(example))
    if reference is not None:  # use the type of the value that the interpolation refers to
        example = OmegaConf.select(config, reference[1])
        if OmegaConf.is_config(example):
            example = OmegaConf.to_container(example)
    if example is None or value is None or example == "???" or (isinstance(example, str) and "${" in example):
        return
    title, kind = kinds.get(type(example), ("a mapping", (DictConfig,)))
    if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kind):
        raise refusal(key, origins, f"expected {title}, such as the default {written(example)}", value=value)


def _check_steps(config: RunConfig, origins: Origins) -> None:
    if config.train.steps is None and config.model["_target_"] != SCRIPT:
        raise refusal("train.steps", origins, "expected an integer, at least 1")


def _check_comm(config: RunConfig, origins: Origins) -> None:
    comm, mode = config.comm, mode_of(config.comm)
    if not comm.sync and not mode.is_all_on_servers:
        needed = f"asynchronous training needs the servers of comm=ps, but the choice is comm={comm.name}"
        raise refusal("comm.sync", origins, needed, value=False)
    if not comm.sync and config.action == "verify":
        needed = "the result of asynchronous training depends on timing, so a comparison is not possible"
        raise refusal("comm.sync", origins, f"{needed}; action=verify needs comm.sync=true", value=False)
    if not comm.sync and config.train.on_nan == "skip":
        needed = "all workers must agree to skip a step, which needs comm.sync=true"
        raise refusal("train.on_nan", origins, needed, value="skip")
    if config.model["_target_"] == SCRIPT and config.train.on_nan == "skip":
        needed = "a script defines its own steps and may have several losses; use skip only with a model"
        raise refusal("train.on_nan", origins, needed, value="skip")
    options = comm.mpi.mpirun_options
    is_list = isinstance(options, tuple) and all(isinstance(one, str) for one in options)
    if not isinstance(options, str) and not is_list:
        raise refusal("comm.mpi.mpirun_options", origins, "expected a string or a list of strings", value=options)
    if isinstance(options, str):
        try:
            shlex.split(options)
        except ValueError as error:
            reason = f"a shell cannot split these options: {error}"
            raise refusal("comm.mpi.mpirun_options", origins, reason, value=options) from error
    _check_measured(config, origins)
    if mode.is_chosen_by_cost and config.model["_target_"] == SCRIPT:
        needed = "a script feeds its own data, so the rows that its steps touch are unknown; choose comm=hybrid"
        raise refusal("comm.name", origins, needed, value=comm.name)
    if mode.needs_all_ranks and config.model["_target_"] == SCRIPT:
        needed = "a script may run ops on one worker, but only all ranks together can read rows; choose comm=hybrid"
        raise refusal("comm.name", origins, needed, value=comm.name)


def _check_measured(config: RunConfig, origins: Origins) -> None:
    key, is_chosen = "comm.measure_rows", mode_of(config.comm).is_chosen_by_cost
    if not config.comm.measure_rows and is_chosen and origins.is_set(key):
        raise refusal(key, origins, "comm=auto chooses routes by measured rows; omit this key", value=False)
    if config.comm.measure_rows and not is_chosen and config.model["_target_"] == SCRIPT:
        needed = "a script feeds its own data, so the rows that its steps touch are unknown; omit this key"
        raise refusal(key, origins, needed, value=True)


def _check_data(config: RunConfig, origins: Origins) -> None:
    data = config.data
    batch_size = data.get("batch_size")
    # The driver derives the batch size if the function of a user returns a tf.data.Dataset.
    is_derived = batch_size is None and not str(data.get("_target_", "")).startswith("parallax_runner.")
    is_valid = type(batch_size) is int and batch_size >= 1
    if not (is_valid or is_derived):
        raise refusal("data.batch_size", origins, "expected an integer, at least 1", value=batch_size)
    seed = data.get("seed")
    if isinstance(seed, int) and seed < 0:
        raise refusal("data.seed", origins, "expected an integer, at least 0", value=seed)
    if "resume" in data and data["resume"] not in ("exact", "approximate"):
        raise refusal("data.resume", origins, "expected exact or approximate", value=data["resume"])
    for name, path in data.items():
        is_of_files = name in ("path", "cache_dir") or str(name).endswith("_path")
        if is_of_files and path is not None and not isinstance(path, str):
            hint = f"data.{name}=\"'{path}'\""
            raise refusal(f"data.{name}", origins, "expected a path, as a string", hint=hint, value=path)
        if isinstance(path, str) and name != "cache_dir" and is_of_files:
            reason = unreadable(os.path.expanduser(path))
            if reason:
                raise refusal(f"data.{name}", origins, reason, value=path)


def _check_resume(config: RunConfig, origins: Origins) -> None:
    resume = config.ckpt.resume
    names = (resume, f"{resume}.index", f"{resume}.json")
    if resume not in ("auto", "never") and not any(map(os.path.lexists, names)):
        raise refusal("ckpt.resume", origins, "expected auto, never, or a path that exists", value=resume)


def _check_simulate(config: RunConfig, origins: Origins) -> None:
    if config.action != "simulate":
        return
    profile = config.simulate.profile
    reason = None if profile is None else unreadable(os.path.expanduser(profile))
    if reason:
        raise refusal("simulate.profile", origins, reason, value=profile)
    if profile is None and config.model["_target_"] == SCRIPT:
        raise refusal("action", origins, "a script feeds its own data; add simulate.profile=PATH", value="simulate")


def _check_sync(config: RunConfig, origins: Origins) -> None:
    if config.action == "sync" and "run_dir" not in origins.given():
        needed = "this action needs the folder of a run or a sweep; add run_dir=PATH"
        raise refusal("action", origins, needed, value="sync")


def _check_folders(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if a folder of the run cannot be written, as far as this can be checked without writing."""
    ckpt = config.ckpt
    key = "hydra.run.dir" if "hydra.run.dir" in origins.given() else "run_dir"
    reason = unwritable(config.run_dir)
    if reason:
        raise refusal(key, origins, reason, value=config.run_dir)
    if ckpt.enabled and ckpt.dir is None:
        raise refusal("ckpt.dir", origins, "expected a folder", hint="ckpt=off, or ckpt.dir=${run_dir}/ckpt")
    if ckpt.enabled and ckpt.dir is not None and config.action == "train":
        reason = unwritable(ckpt.dir)
        if reason:
            raise refusal("ckpt.dir", origins, reason, value=ckpt.dir)
    others = {"profile.dir": config.profile.dir, "redirect_path": config.redirect_path}
    for key, folder in (others | {"export_graph_path": config.export_graph_path}).items():
        reason = None if folder is None else unwritable(folder)
        if reason:
            raise refusal(key, origins, reason, value=folder)


def unwritable(path: str) -> str | None:
    """Returns the reason why a folder cannot be created or written at `path`, or None if this seems possible."""
    if (undecodable := undecoded(path)) is not None:
        return f"the path cannot be read: {undecodable}"
    if path.startswith("~") and not os.path.lexists(path):
        return f"~ is not expanded here; write {os.path.expanduser(path)}"
    whole = nearest = os.path.abspath(path)
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    if not os.path.isdir(nearest):
        return f"expected a folder, but {nearest} is a file"
    most_bytes = os.pathconf(nearest, "PC_NAME_MAX")
    if any(len(os.fsencode(name)) > most_bytes for name in os.path.relpath(whole, nearest).split(os.sep)):
        return f"a name in the path has more than {most_bytes} bytes"
    if len(os.fsencode(whole)) + BELOW_BYTES > os.pathconf(nearest, "PC_PATH_MAX"):
        return "the path is too long"
    # Even for root, os.access detects a read-only file system, but its result is wrong for the kernel's own file
    # systems.
    is_of_kernel = Path(os.path.realpath(nearest)).parts[:2] in KERNEL
    is_writable = not is_of_kernel and os.access(nearest, os.W_OK | os.X_OK)
    return None if is_writable else f"the folder {nearest} is not writable"


def unreadable(path: str) -> str | None:
    """Returns the reason why training data cannot be read from `path`, which is a file or a folder. Returns None if the
    data can be read."""
    if not os.path.exists(path):
        return f"no such file or folder; looked for {os.path.abspath(path)}"
    if os.path.isdir(path):
        if not os.access(path, os.R_OK | os.X_OK):
            return "this folder cannot be read"
        if not any(files for _, _, files in os.walk(path, followlinks=True)):
            return "this folder contains no files"
        return None
    kind = kind_of(path)
    if kind is not None:
        return f"expected a file or a folder, but this is {kind}"
    return None if os.access(path, os.R_OK) else "this file cannot be read"
