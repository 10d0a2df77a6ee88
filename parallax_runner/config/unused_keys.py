"""The keys and choices that a configuration does not use: a table with the condition and the reason for each.

An unused key is not an error, because a sweep over modes gives the same keys to all modes. `without_unused` gives the
key the value that is actually in effect, and config/unused_notes.py reports it. A key such as `partition.name` stands
for the choice of its group. This module does not need Hydra.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from parallax_runner.config import launchers, trackers
from parallax_runner.config.actions import action_named, action_of, owner_of
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.schema import (
    CkptConfig,
    ClusterConfig,
    CommConfig,
    MpiConfig,
    PartitionConfig,
    PredictConfig,
    ProfileConfig,
    PsConfig,
    ReadConfig,
    RunConfig,
    SimulateConfig,
    TakeConfig,
    TrackingConfig,
)
from parallax_runner.config.targets import SCRIPT

KEPT: Any = object()  # in place of a value: nothing reads the key, so its value can stay
# The groups of keys that belong to some actions.
OF_ACTIONS = {"read": ReadConfig, "predict": PredictConfig, "simulate": SimulateConfig}
OF_SEARCH = ("min", "max", "steps_per_trial")
PROFILED_BY = {"dir": ("steps", "range"), "steps": ("steps",), "range": ("range",), "worker": ("steps", "range")}


class Rule(NamedTuple):
    """A key, a function that returns the reason why a configuration does not use the key (None: it does), and the value
    that an unused key gets. A key that already has this value needs no note."""

    key: str
    reason: Callable[[RunConfig], str | None]
    value: Any = KEPT

    @property
    def group(self) -> str | None:
        """The group whose choice this key names, or None if the key does not name a choice."""
        group, _, name = self.key.rpartition(".")
        return group if name == "name" else None


def without_unused(config: RunConfig) -> RunConfig:
    """Returns the configuration in which each unused key has the value that is actually in effect."""
    for rule in RULES:
        if rule.value is not KEPT and rule.reason(config) is not None:
            config = _with(config, rule.key.split("."), rule.value)
    return config


def _with(node: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    return dataclasses.replace(node, **{name: _with(getattr(node, name), rest, value) if rest else value})


def _if_one_process(config: RunConfig, reason: str) -> str | None:
    return f"comm={config.comm.name} {reason}" if mode_of(config.comm).is_one_process else None


def _workers(config: RunConfig) -> str | None:
    return _if_one_process(config, "uses one process") if config.cluster.workers > 1 else None


def _servers(config: RunConfig) -> str | None:
    has_use = not config.cluster.servers or mode_of(config.comm).has_servers
    return None if has_use else f"comm={config.comm.name} has no servers"


def _replicas(config: RunConfig) -> str | None:
    reason = f"under comm={config.comm.name} a worker has one replica; add workers, or choose comm=ps"
    return None if mode_of(config.comm).is_all_on_servers else reason


def _launcher(config: RunConfig) -> str | None:
    is_needless = mode_of(config.comm).is_one_process and launchers.is_chosen(config.cluster.launcher)
    return f"under comm={config.comm.name} the driver starts the only process itself" if is_needless else None


def _launcher_option(config: RunConfig) -> str | None:
    name = config.cluster.launcher
    if not launchers.declared_by(name).has_options:
        return f"cluster.launcher={name} has no options"
    return _launcher(config)


def _of_other_launcher(name: str) -> Callable[[RunConfig], str | None]:
    """Returns the function that tells why a configuration does not use a key of `cluster`, if the key belongs to some
    launchers."""

    def reason(config: RunConfig) -> str | None:
        owners = launchers.owners_of_key(name)
        if not owners or name in launchers.declared_by(launchers.launcher_name(config)).own_keys:
            return None
        purposes = " or ".join(launchers.declared_by(owner).keys_are_for for owner in owners)
        return f"it is only for {purposes} and needs {' or '.join(f'cluster={owner}' for owner in owners)}"

    return reason


def _sending(config: RunConfig) -> str | None:
    return None if action_of(config).compares_modes else _measuring(config)


def _measuring(config: RunConfig) -> str | None:
    return _if_one_process(config, "sends nothing")


def _averaging(config: RunConfig) -> str | None:
    own = None if config.comm.sync else "with comm.sync=false each worker applies its own gradients"
    return _if_one_process(config, "has one worker") or own


def _mpirun(config: RunConfig) -> str | None:
    return _if_one_process(config, "does not use mpirun")


def _exchanging(config: RunConfig) -> str | None:
    has_none = "keeps all variables on servers" if mode_of(config.comm).is_all_on_servers else None
    own = f"comm={config.comm.name} {has_none}" if has_none else None
    return _if_one_process(config, "has one rank") or own


def _gathering(config: RunConfig) -> str | None:
    mode = mode_of(config.comm)
    gathers = "gathers only with Horovod" if mode.is_chosen_by_cost else "gathers nothing"
    return None if mode.gathers else f"comm={config.comm.name} {gathers}; this key needs comm=mpi or comm=hybrid"


def _server_option(config: RunConfig) -> str | None:
    has_use = mode_of(config.comm).has_servers or action_of(config).compares_modes
    return None if has_use else f"comm={config.comm.name} has no servers; this key needs comm=ps or comm=hybrid"


def _replication(config: RunConfig) -> str | None:
    waits = "copies are refreshed after all workers' updates; this key needs comm.sync=true"
    return _server_option(config) or (None if config.comm.sync else waits)


def _staleness(config: RunConfig) -> str | None:
    is_ahead = "in synchronous training no worker gets ahead; this key needs comm=ps comm.sync=false"
    return _server_option(config) or (is_ahead if config.comm.sync else None)


def _backup(config: RunConfig) -> str | None:
    name, mode = config.comm.name, mode_of(config.comm)
    if not mode.has_servers:
        return f"comm={name} has no servers; this key needs comm=ps"
    if not mode.is_all_on_servers:
        return f"the allreduce of comm={name} waits for every worker in each step; this key needs comm=ps"
    return (
        None if config.comm.sync else "with comm.sync=false no worker waits for another; this key needs comm.sync=true"
    )


def _search(config: RunConfig) -> str | None:
    action = action_of(config)
    if action.searches_only or config.partition.name == "fixed":  # the plan has a note on partition=fixed
        return None
    if action.compares_modes:
        return f"action={config.action} does not search"
    reason = (
        f"comm={config.comm.name} has no servers, so no variable is split; this choice needs comm=ps or comm=hybrid"
    )
    return None if mode_of(config.comm).has_servers else reason


def _profile(config: RunConfig) -> str | None:
    return None if action_of(config).can_be_profiled else f"action={config.action} does not train"


def _shards(config: RunConfig) -> str | None:
    if config.partition.name == "search":
        return "the search determines this number; to set it, choose partition=fixed"
    return _cut(config)


def _cut(config: RunConfig) -> str | None:
    return "partition=off does not split variables; choose partition=fixed" if config.partition.name == "off" else None


def _cut_of_search(config: RunConfig) -> str | None:
    return "a search splits by bytes" if config.partition.name == "search" else None


def _trials(config: RunConfig) -> str | None:
    name = config.partition.name
    return None if name == "search" else f"partition={name} does not search; choose partition=search"


def _ckpt(config: RunConfig) -> str | None:
    return None if config.ckpt.enabled else "ckpt is off; omit ckpt=off"


def _warm_start(config: RunConfig) -> str | None:
    goes_on = action_of(config).goes_on_training
    return _ckpt(config) or (None if goes_on else f"action={config.action} uses the checkpoint of ckpt.resume")


def _take(config: RunConfig) -> str | None:
    return _warm_start(config) or (None if config.ckpt.warm_start is not None else "there is no ckpt.warm_start")


def _position(config: RunConfig) -> str | None:
    if config.model.get("_target_") == SCRIPT:
        return "a script reads its own data"
    begins_afresh = "ckpt.resume=never begins at the first example"
    return _ckpt(config) or (begins_afresh if config.ckpt.resume == "never" else None)


def _tracking(config: RunConfig) -> str | None:
    return None if config.tracking.enabled else "tracking is off; omit tracking=off"


def _tracker_option(config: RunConfig) -> str | None:
    if not config.tracking.enabled:
        return _tracking(config)
    name = config.tracking.tracker
    return None if trackers.declared_by(name).has_options else f"tracking.tracker={name} has no options"


def _of_other_action(group: str) -> Callable[[RunConfig], str | None]:
    """Returns the function that tells why a configuration does not use the keys of `group`, which belong to one
    action."""

    def reason(config: RunConfig) -> str | None:
        if group in action_of(config).own_keys:
            return None
        owner = owner_of(group)
        return f"action={config.action} does not {action_named(owner).purpose}; add action={owner}"

    return reason


def _profiled(name: str) -> Callable[[RunConfig], str | None]:
    def reason(config: RunConfig) -> str | None:
        chosen, choices = config.profile.name, PROFILED_BY[name]
        if chosen in choices:
            return None
        needed = " or ".join(f"profile={choice}" for choice in choices)
        return f"profile is off; add {needed}" if chosen == "off" else f"profile={chosen} does not use it; add {needed}"

    return reason


def _names(schema: type[Any], *but: str) -> Iterator[str]:
    return (entry.name for entry in dataclasses.fields(schema) if entry.name not in but)


def _default(schema: type[Any], name: str) -> Any:
    return next(entry.default for entry in dataclasses.fields(schema) if entry.name == name)


_OF_PS = {"replicate_variables": _replication, "staleness": _staleness, "backup_workers": _backup}
RULES = (
    Rule("cluster.workers", _workers),
    Rule("cluster.servers", _servers),
    Rule("cluster.replicas_per_worker", _replicas, 1),
    Rule("cluster.launcher", _launcher),
    Rule("cluster.options", _launcher_option),
    *(Rule(f"cluster.{name}", _of_other_launcher(name)) for name in _names(ClusterConfig)),
    Rule("comm.compression", _sending, _default(CommConfig, "compression")),
    Rule("comm.measure_rows", _measuring, _default(CommConfig, "measure_rows")),
    Rule("comm.average_sparse", _averaging, _default(CommConfig, "average_sparse")),
    Rule("comm.backend", _exchanging, "auto"),
    Rule("comm.mpi.mpirun_options", _mpirun, _default(MpiConfig, "mpirun_options")),
    Rule("comm.mpi.use_allgatherv", _gathering, _default(MpiConfig, "use_allgatherv")),
    *(Rule(f"comm.ps.{name}", _OF_PS.get(name, _server_option), _default(PsConfig, name)) for name in _names(PsConfig)),
    Rule("partition.name", _search, "off"),
    Rule("partition.num", _shards, 1),
    Rule("partition.cut", _cut, _default(PartitionConfig, "cut")),
    Rule("partition.cut", _cut_of_search, "by_bytes"),
    *(Rule(f"partition.{name}", _trials, _default(PartitionConfig, name)) for name in OF_SEARCH),
    *(Rule(f"ckpt.{name}", _ckpt) for name in _names(CkptConfig, "enabled", "position", "warm_start", "take")),
    Rule("ckpt.warm_start", _warm_start, None),
    *(Rule(f"ckpt.take.{name}", _take) for name in _names(TakeConfig)),
    Rule("ckpt.position", _position, _default(CkptConfig, "position")),
    Rule("profile.name", _profile, "off"),
    *(Rule(f"profile.{name}", _profiled(name)) for name in _names(ProfileConfig, "name")),
    Rule("tracking.options", _tracker_option),
    *(Rule(f"tracking.{name}", _tracking) for name in _names(TrackingConfig, "enabled", "options")),
    *(
        Rule(f"{group}.{name}", _of_other_action(group), _default(schema, name))
        for group, schema in OF_ACTIONS.items()
        for name in _names(schema)
    ),
)
