"""Writes a `tf.data` pipeline to files and makes it again in another process, without the code that defined it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2
from tensorflow.core.protobuf import struct_pb2
from tensorflow.python.saved_model import nested_structure_coder

from parallax_runner.data.batch_structure import BatchStructure
from parallax_runner.data.dataset import Feature
from parallax_runner.files.literal_path import literal_folder
from parallax_runner.files.plain import read_object
from parallax_runner.files.whole import write_whole
from parallax_runner.graph.all_nodes import all_nodes
from parallax_runner.graph.tf_data.batches import Batches, eagerly
from parallax_runner.graph.tf_data.fresh_copy import FreshCopies
from parallax_runner.graph.tf_data.repeatable import PYTHON
from parallax_runner.graph.tf_data.tf_dataset import TfDataset

FACTS = "pipeline.json"
GRAPH, SPECS, OPTIONS, LARGE = "graph.pb", "specs.pb", "options.pb", "large"
TRAIN, VALIDATION = "train", "validation"
# Plain values of the two classes, which are stored as JSON.
OF_DATASET = ("is_endless", "whole_only", "reads_only_full", "first_pass", "first_step")
OF_BATCHES = (
    *("what", "size", "static_size", "has_common_size", "is_full", "by_example", "is_endless", "draws_order"),
    *("seeds", "known"),
)


def why_it_stays(dataset: TfDataset) -> str | None:
    """Returns the reason why another process cannot make the pipelines, or None."""
    reasons = (_why_batches_stay(batches) for batches in _parts(dataset).values())
    return next(filter(None, reasons), None)


def _why_batches_stay(batches: Batches) -> str | None:
    graph_def = batches.copies.graph_def
    if any(node.op in PYTHON for node in all_nodes(graph_def)):
        return f"{batches.what} calls Python code (from_generator, py_function or numpy_function)"
    held = [node for node in all_nodes(graph_def) if node.op == "Const" and _is_handle(node)]
    if held:
        return f"{batches.what} uses a variable or another resource of this process («{held[0].name}»)"
    try:
        nested_structure_coder.encode_structure(batches.copies.element_spec)
    except nested_structure_coder.NotEncodableError:
        return f"{batches.what} has elements of a type that TensorFlow cannot write to a file"
    return None


def _is_handle(constant: Any) -> bool:
    return constant.attr["dtype"].type == tf.resource.as_datatype_enum


def size_bytes(dataset: TfDataset) -> int:
    """Returns the size of the pipelines' large arrays."""
    arrays = [array for batches in _parts(dataset).values() for array in batches.copies.large.values()]
    return sum(int(tf.size(array)) * max(1, array.dtype.size or 1) for array in arrays)


def graphs(dataset: TfDataset) -> Iterator[Any]:
    """Yields the GraphDefs of the pipelines."""
    yield from (batches.copies.graph_def for batches in _parts(dataset).values())


def save(dataset: TfDataset, folder: Path) -> None:
    """Writes the pipelines into `folder`. Raises OSError if a file cannot be written."""
    facts = {name: getattr(dataset, name) for name in OF_DATASET}
    # All workers must agree on these numbers, so the driver counts.
    facts |= {"given_steps": dataset.pass_steps, "given_examples": dataset.pass_examples}
    parts = {part: _save(batches, folder, part) for part, batches in _parts(dataset).items()}
    write_whole(folder / FACTS, json.dumps({"dataset": facts, "parts": parts}))


def load(folder: Path) -> TfDataset:
    """Makes the pipelines that `save` has written. Raises OSError or ValueError if a file cannot be read."""
    facts = read_object(folder / FACTS)[1]
    parts = {part: _load(stored, folder, part) for part, stored in facts["parts"].items()}
    return TfDataset(train=parts[TRAIN], validation=parts.get(VALIDATION), **facts["dataset"])


def _parts(dataset: TfDataset) -> dict[str, Batches]:
    found = {TRAIN: dataset.train}
    if dataset.validation is not None:
        found[VALIDATION] = dataset.validation
    return found


def _save(batches: Batches, folder: Path, part: str) -> dict[str, Any]:
    """Writes a pipeline. Returns the facts about its batches."""
    copies = batches.copies
    write_whole(folder / f"{part}-{GRAPH}", copies.graph_def.SerializeToString(deterministic=True))
    write_whole(folder / f"{part}-{OPTIONS}", copies.options._to_proto().SerializeToString())
    spec = nested_structure_coder.encode_structure(copies.element_spec)
    write_whole(folder / f"{part}-{SPECS}", spec.SerializeToString())
    _save_large(copies.large, folder / f"{part}-{LARGE}")
    facts: dict[str, Any] = {name: getattr(batches, name) for name in OF_BATCHES}
    facts["features"] = {name: asdict(feature) for name, feature in batches.features.items()}
    facts["structure"] = asdict(batches.structure)
    facts["large"] = {name: array.dtype.name for name, array in copies.large.items()}
    return facts


def _load(facts: Mapping[str, Any], folder: Path, part: str) -> Batches:
    spec = struct_pb2.StructuredValue.FromString((folder / f"{part}-{SPECS}").read_bytes())
    options = tf.data.Options()
    options._from_proto(dataset_options_pb2.Options.FromString((folder / f"{part}-{OPTIONS}").read_bytes()))
    copies = FreshCopies(
        graph_def=tf.compat.v1.GraphDef.FromString((folder / f"{part}-{GRAPH}").read_bytes()),
        large=_load_large(facts["large"], folder / f"{part}-{LARGE}"),
        element_spec=nested_structure_coder.decode_proto(spec),
        options=options,
    )
    return Batches(
        **{name: facts[name] for name in OF_BATCHES},
        structure=BatchStructure(**{name: _as_names(value) for name, value in facts["structure"].items()}),
        features={name: _as_feature(feature) for name, feature in facts["features"].items()},
        copies=copies,
    )


def _save_large(arrays: Mapping[str, Any], prefix: Path) -> None:
    if not arrays:
        return
    with eagerly():
        slices = [""] * len(arrays)
        tf.raw_ops.SaveV2(
            prefix=str(prefix), tensor_names=list(arrays), shape_and_slices=slices, tensors=list(arrays.values())
        )


def _load_large(dtypes: Mapping[str, str], prefix: Path) -> dict[str, Any]:
    if not dtypes:
        return {}
    with eagerly():
        tensors = tf.raw_ops.RestoreV2(
            prefix=str(literal_folder(prefix.parent) / prefix.name),
            tensor_names=list(dtypes),
            shape_and_slices=[""] * len(dtypes),
            dtypes=[tf.as_dtype(dtype) for dtype in dtypes.values()],
        )
    return dict(zip(dtypes, tensors, strict=True))


def _as_feature(facts: Mapping[str, Any]) -> Feature:
    return Feature(**{**facts, "shape": tuple(facts["shape"])})


def _as_names(value: Any) -> Any:
    """Returns the names of a structure. JSON has lists in place of tuples."""
    if isinstance(value, list):
        return tuple(_as_names(one) for one in value)
    if isinstance(value, Mapping):
        return {key: _as_names(one) for key, one in value.items()}
    return value
