"""Finds the ops of a captured graph that a step runs once for each part of its batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph import edit
from parallax_runner.graph.boundary import find_boundary
from parallax_runner.graph.edit import Op
from parallax_runner.graph.seeds import draws
from parallax_runner.graph.single_device_graph import SingleDeviceGraph


@dataclass(frozen=True)
class PartOps:
    """The ops of a step of `graph`.

    - `repeated` run once for each part: the forward and backward pass, and what they write, such as statistics.
    - `writes` are those of `repeated` that write a variable.
    - `lookups` are those of `repeated` that look up rows by features alone, and what computes these ids.
    - `shared` have the same values for all parts, such as reads of weights. `repeated` needs them.
    - `region` is the update region of the step, without `repeated`.
    """

    graph: tf.Graph
    repeated: frozenset[Op]
    writes: frozenset[Op]
    lookups: frozenset[Op]
    shared: frozenset[Op]
    region: frozenset[Op]


def part_ops(single: SingleDeviceGraph) -> PartOps:
    """Returns the ops of a captured graph, which is imported into a new graph.

    Raises CaptureError if the gradients depend on the update itself.
    """
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(single.meta_graph.graph_def, name="")
    step = [graph.get_operation_by_name(single.train_op), *_computed(graph, single)]
    needed = edit.ancestors(step)
    region = find_boundary(graph, single.train_op, single.gradients).region
    gradients = [graph.get_tensor_by_name(name) for name in gradient_names(single)]
    updating = {consumer for tensor in gradients for consumer in tensor.consumers() if consumer in region}
    before = needed - _behind(updating, needed)
    sources = {op for op in before if draws(op.node_def)}
    sources |= {graph.get_tensor_by_name(name).op for name in single.features.values()}
    # An op that only waits for the examples, such as a weight decay, runs once.
    varying = edit.descendants([output for op in sources for output in op.outputs], within=before)
    computing = edit.ancestors([*(tensor.op for tensor in gradients), *_computed(graph, single)])
    if not computing <= before:
        raise CaptureError(
            "the gradients depend on the update of the same step, so they cannot be computed in several passes"
        )
    writes = {op for op in before if edit.is_write(op) and (op in varying or op in computing)}
    closure = edit.ancestors([*(tensor.op for tensor in gradients), *_computed(graph, single), *writes])
    changing = _behind([*sources, *writes, *_reads_of(writes)], closure) - _placeholders(graph, single)
    lookups = _lookups_by_features(changing, writes)
    return PartOps(
        graph=graph,
        repeated=frozenset(changing),
        writes=frozenset(writes),
        lookups=frozenset(lookups),
        shared=frozenset(closure - changing - _placeholders(graph, single)),
        region=frozenset(region - changing),
    )


def gradient_names(single: SingleDeviceGraph) -> list[str]:
    """Returns the names of the tensors that contain the gradients' values and ids, each once."""
    names = [name for one in single.gradients for name in (one.values, one.indices) if name is not None]
    return list(dict.fromkeys(names))


def _computed(graph: tf.Graph, single: SingleDeviceGraph) -> list[Op]:
    """Returns the ops that compute the loss and the metrics of a step."""
    return [graph.get_tensor_by_name(name).op for name in (single.loss, *single.fetched_in_training)]


def _placeholders(graph: tf.Graph, single: SingleDeviceGraph) -> set[Op]:
    return {graph.get_tensor_by_name(name).op for name in single.features.values()}


def _behind(starts: Iterable[Op], within: set[Op]) -> set[Op]:
    """Returns `starts` and the ops in `within` that depend on them, through data or control."""
    found: set[Op] = set()
    stack = list(starts)
    while stack:
        op = stack.pop()
        if op in found or op not in within:
            continue
        found.add(op)
        stack += [consumer for output in op.outputs for consumer in output.consumers()]
        stack += op._control_outputs
    return found


def _reads_of(writes: Iterable[Op]) -> set[Op]:
    """Returns the ops that use the variables which `writes` change. A part reads what the part before has written."""
    handles = {handle for write in writes for handle in edit.handle_of(write)}
    return {consumer for handle in handles for output in handle.outputs for consumer in output.consumers()}


def _lookups_by_features(repeated: set[Op], writes: Iterable[Op]) -> set[Op]:
    """Returns the lookups of rows that no part changes, by ids that follow from features, and the ops that compute
    these ids. All parts look up at once, so that ranks exchange rows once in a step."""
    changed = {handle for write in writes for handle in edit.handle_of(write)}
    found: set[Op] = set()
    for op in repeated:
        if op.type != "ResourceGather" or changed.intersection(edit.handle_of(op)):
            continue
        needs = edit.ancestors([op]) & repeated
        if all(one is op or edit.is_plain(one) for one in needs):
            found |= needs
    return found
