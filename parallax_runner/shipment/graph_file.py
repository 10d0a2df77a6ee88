"""Writes a captured graph to files and reads it in another process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NoReturn

import tensorflow.compat.v1 as tf

from parallax_runner.errors import LaunchError
from parallax_runner.files.literal_path import literal_folder
from parallax_runner.files.plain import read_object
from parallax_runner.files.whole import write_whole
from parallax_runner.graph.fingerprint import fingerprint_of
from parallax_runner.graph.single_device_graph import (
    Divisor,
    DivisorKind,
    Gradient,
    MetricSums,
    RankSum,
    SingleDeviceGraph,
    Variable,
)
from parallax_runner.shipment.op_libraries import load_libraries
from parallax_runner.shipment.stored_values import set_prefix

GRAPH = "graph.pb"
FACTS = "graph.json"
VALUES = "values"
# Fields of a graph that exist only in the process that captured it.
NOT_STORED = frozenset({"meta_graph", "callbacks", "keras_model", "loss_trial", "initial_values"})


def save_graph(single: SingleDeviceGraph, folder: Path, *, libraries: Sequence[str]) -> None:
    """Writes a graph whose initial values are in the checkpoint `folder/values`. `libraries` are the paths of the
    libraries that define the graph's custom ops."""
    write_whole(folder / GRAPH, single.meta_graph.SerializeToString(deterministic=True))
    facts = {name: _plain(getattr(single, name)) for name in _stored_fields()}
    write_whole(folder / FACTS, json.dumps({"graph": facts, "libraries": list(libraries)}) + "\n")


def load_graph(folder: Path) -> SingleDeviceGraph:
    """Reads a graph that `save_graph` has written. Its initial values come from the checkpoint in `folder`.

    The functions that compute metrics from sums exist only in the driver, so they raise an error here.

    Raises OSError or ValueError if a file cannot be read, and LaunchError if the graph is not the one that was written
    or an op library cannot be loaded.
    """
    _, stored = read_object(folder / FACTS)
    load_libraries(stored["libraries"])
    facts = {name: _restored(name, value) for name, value in stored["graph"].items()}
    meta_graph = tf.MetaGraphDef.FromString((folder / GRAPH).read_bytes())
    if fingerprint_of(meta_graph.graph_def) != facts["fingerprint"]:
        raise LaunchError(f"{folder / GRAPH}: it is not the graph that the driver has written; start the run again")
    set_prefix(meta_graph.graph_def, str(literal_folder(folder) / VALUES))
    return SingleDeviceGraph(meta_graph=meta_graph, **facts)


def _stored_fields() -> list[str]:
    return [one.name for one in fields(SingleDeviceGraph) if one.name not in NOT_STORED]


def _plain(value: Any) -> Any:
    """Returns a field of a graph as JSON values."""
    if isinstance(value, MetricSums):
        lists = {"tensors": list(value.tensors), "last": list(value.last)}
        return lists | {
            "directions": dict(value.directions),
            "rows": {name: list(one) for name, one in value.rows.items()},
        }
    if isinstance(value, Variable | Gradient | RankSum):
        return asdict(value)
    if isinstance(value, Divisor):
        return {"tensor": value.tensor, "kind": value.kind.value, "term": value.term}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value


def _restored(name: str, value: Any) -> Any:
    """Returns the field `name` of a graph from what `_plain` has returned."""
    if value is None or name not in _RESTORE:
        return value
    return _RESTORE[name](value)


def _variable(facts: Mapping[str, Any]) -> Variable:
    sizes = {name: tuple(facts[name]) for name in ("shape", "full_shape", "offset")}
    return Variable(**{**facts, **sizes})


def _metric_sums(facts: Mapping[str, Any]) -> MetricSums:
    rows = {name: tuple(names) for name, names in facts["rows"].items()}
    return MetricSums(
        tuple(facts["tensors"]), _only_in_driver, facts["directions"], last=tuple(facts["last"]), rows=rows
    )


def _only_in_driver(*_: Sequence[Any]) -> NoReturn:
    raise RuntimeError("only the driver computes metrics from their sums")


_RESTORE: Mapping[str, Callable[[Any], Any]] = {
    "variables": lambda value: tuple(map(_variable, value)),
    "gradients": lambda value: tuple(Gradient(**one) for one in value),
    "metrics": _metric_sums,
    "validation_metrics": _metric_sums,
    "rank_sums": lambda value: tuple(RankSum(**one) for one in value),
    "divisors": lambda value: tuple(Divisor(one["tensor"], DivisorKind(one["kind"]), one["term"]) for one in value),
    "apart": lambda value: tuple(map(frozenset, value)),
    **dict.fromkeys(("asked", "observers", "losses", "notes", "learning_rates"), tuple),
}
