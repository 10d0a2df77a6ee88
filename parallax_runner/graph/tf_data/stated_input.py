"""Determines everything that decides how many elements a `tf.data` pipeline yields: its graph, its arrays and the files
that it reads. If this is unchanged, the number is unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from parallax_runner.graph.all_nodes import all_nodes
from parallax_runner.graph.tf_data.function_state import CALLING, CHECKING, PYTHON
from parallax_runner.graph.tf_data.length import is_in_memory, node_of
from parallax_runner.graph.tf_data.upstream import called, upstream_of, without_process_names

# Datasets that read files whose names are their first input.
READERS = (
    *("TextLineDataset", "TFRecordDataset", "TFRecordDatasetV2"),
    *("FixedLengthRecordDataset", "FixedLengthRecordDatasetV2"),
)
# Ops that TensorFlow marks as stateful, but that yield the same for the same inputs.
CERTAIN = (
    *("RangeDataset", "TensorDataset", "TensorSliceDataset", "SparseTensorSliceDataset", "ListDataset"),
    *("ShuffleDatasetV3", "ShuffleAndRepeatDatasetV2", "RandomDatasetV2", "DummySeedGenerator", "DummyMemoryCache"),
    *(*CALLING, CHECKING, *READERS, "_Retval", "_Arg"),
)
# Ops that read files and are not marked as stateful.
READING_OTHERS = ("SnapshotDatasetV2", "MatchingFiles", "MatchingFilesDataset", "ReadFile")
# Ops that yield strings without computing any.
KEEPING_STRINGS = (
    *("Const", "Placeholder", "Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze"),
    *("GatherV2", "StridedSlice", "ConcatV2", "Pack"),
)


class UncertainInputError(Exception):
    """Something else can decide how many elements a pipeline yields. The message says what."""


def state_of_input(graph_def: Any, output: str, large: Mapping[str, Any]) -> list[Any]:
    """Returns JSON values that change whenever the number of elements of the dataset `output` may change.

    `large` maps the names of placeholders in `graph_def` to their arrays. A file is described by its path, its size in
    bytes and its modification time in ns. Raises UncertainInputError if the state of the input cannot be determined.
    """
    part = upstream_of(graph_def, output)
    nodes = {node.name: node for node in part.node}
    for node in all_nodes(part):
        _check(node, nodes)
    arrays = {node.name: large[node.name] for node in part.node if node.name in large}
    digests = [[name, _digest(array)] for name, array in sorted(arrays.items())]
    files = [_state_of(path) for path in sorted(_files_of(part, arrays))]
    graph = without_process_names(part).SerializeToString(deterministic=True)
    return [_sha256(graph), node_of(output), digests, files]


def _check(node: Any, nodes: Mapping[str, Any]) -> None:
    op = op_def_registry.get(node.op)
    if op is None:
        raise UncertainInputError(f"it contains the op {node.op}, which is not one of TensorFlow's")
    if node.op in PYTHON or node.op == "GeneratorDataset":
        raise UncertainInputError("it calls Python code")
    if _is_resource(node):
        raise UncertainInputError("it uses a variable or another resource of this process")
    can_keep_state = op.is_stateful and node.op not in CERTAIN
    is_cache = node.name in nodes and is_in_memory(node, nodes)
    if node.op in READING_OTHERS or (can_keep_state and not is_cache):
        raise UncertainInputError(f"the result of its op {node.op} can change")


def _is_resource(node: Any) -> bool:
    return node.op == "Const" and node.attr["dtype"].type == tf.resource.as_datatype_enum


def _files_of(part: Any, arrays: Mapping[str, Any]) -> set[Path]:
    """Returns the files that the graph reads."""
    functions = {function.signature.name: function for function in part.library.function}
    opening = [node for node in part.node if _opens_files(node, functions)]
    found = set[Path]()
    for node in opening:
        before = upstream_of(part, node.name)
        others = [other for other in before.node if other.name != node.name]
        if any(_opens_files(other, functions) for other in others):
            raise UncertainInputError("it reads files whose names can come from another file")
        if any(map(_computes_strings, all_nodes(before))):
            raise UncertainInputError("it computes the names of files")
        found.update(filter(None, map(_path_of, _strings_in(before, arrays))))
    return found


def _opens_files(node: Any, functions: Mapping[str, Any]) -> bool:
    """Returns whether a node, or a function that it calls, reads a file."""
    if node.op in READERS:
        return True
    names = (function.name for function in called(node))
    inner = (each for name in names if name in functions for each in functions[name].node_def)
    return any(_opens_files(each, functions) for each in inner)


def _computes_strings(node: Any) -> bool:
    if node.op in KEEPING_STRINGS:
        return False
    string = tf.string.as_datatype_enum
    for output in op_def_registry.get(node.op).output_arg:
        types = [output.type, node.attr[output.type_attr].type if output.type_attr else 0]
        if output.type_list_attr:
            types += node.attr[output.type_list_attr].list.type
        if string in types:
            return True
    return False


def _strings_in(part: Any, arrays: Mapping[str, Any]) -> Iterator[bytes]:
    """Yields the strings in the constants of a graph."""
    for node in all_nodes(part):
        if node.op == "Const" and node.attr["dtype"].type == tf.string.as_datatype_enum:
            # NumPy's reader of tensors cannot read strings that TensorFlow has packed.
            yield from np.ravel(tf.io.parse_tensor(node.attr["value"].tensor.SerializeToString(), tf.string).numpy())
        elif node.name in arrays and arrays[node.name].dtype == tf.string:
            yield from np.ravel(arrays[node.name].numpy())


def _path_of(text: bytes) -> Path | None:
    """Returns the file that a string names, or None if there is no such file."""
    if b"://" in text:
        raise UncertainInputError(f"it reads {text.decode(errors='replace')}, which is not a file of this machine")
    path = Path(text.decode(errors="surrogateescape"))
    return path.absolute() if b"\0" not in text and path.is_file() else None


def _state_of(path: Path) -> list[Any]:
    state = path.stat()
    return [str(path), state.st_size, state.st_mtime_ns]


def _digest(array: Any) -> str:
    return f"{array.dtype.name} {array.shape} {_sha256(tf.io.serialize_tensor(array).numpy())}"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
