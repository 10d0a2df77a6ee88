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
    graph = _imported(single)
    gradients = [graph.get_tensor_by_name(name) for name in gradient_names(single)]
    computed = [*(tensor.op for tensor in gradients), *_computed(graph, single)]
    region = find_boundary(graph, single.train_op, single.gradients).region
    needed = edit.ancestors([graph.get_operation_by_name(single.train_op), *_computed(graph, single)])
    before = needed - _behind(_readers(gradients, region), needed)
    computing = edit.ancestors(computed)
    if not computing <= before:
        raise CaptureError(
            "the gradients depend on the update of the same step, so they cannot be computed in several passes"
        )
    features = {graph.get_tensor_by_name(name).op for name in single.features.values()}
    sources = features.union(op for op in before if draws(op.node_def))
    writes = _writes_of_a_pass(before, sources, computing)
    closure = edit.ancestors([*computed, *writes])
    repeated = _behind([*sources, *writes, *_reads_of(writes)], closure) - features
    return PartOps(
        graph=graph,
        repeated=frozenset(repeated),
        writes=frozenset(writes),
        lookups=frozenset(_lookups_by_features(repeated, writes)),
        shared=frozenset(closure - repeated - features),
        region=frozenset(region - repeated),
    )


def _imported(single: SingleDeviceGraph) -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(single.meta_graph.graph_def, name="")
    return graph


def _readers(tensors: Iterable[tf.Tensor], region: Iterable[Op]) -> set[Op]:
    """Returns the ops of the region that read one of the tensors."""
    return {consumer for tensor in tensors for consumer in tensor.consumers()}.intersection(region)


def _writes_of_a_pass(before: set[Op], sources: Iterable[Op], computing: set[Op]) -> set[Op]:
    """Returns the ops that write what they compute from examples, or that the gradients wait for. An op that only waits
    for the examples, such as a weight decay, is none of them."""
    varying = edit.descendants([output for op in sources for output in op.outputs], within=before)
    of_a_pass = varying.union(computing & before)
    return set(filter(edit.is_write, of_a_pass))


def gradient_names(single: SingleDeviceGraph) -> list[str]:
    """Returns the names of the tensors that contain the gradients' values and ids, each once."""
    names = [name for one in single.gradients for name in (one.values, one.indices) if name is not None]
    return list(dict.fromkeys(names))


def _computed(graph: tf.Graph, single: SingleDeviceGraph) -> list[Op]:
    """Returns the ops that compute the loss and the metrics of a step."""
    return [graph.get_tensor_by_name(name).op for name in (single.loss, *single.fetched_in_training)]


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
