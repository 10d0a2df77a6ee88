"""Gradients of values that a model has read from a variable: of rows that it has looked up, and of copies.

A value that is computed from one variable alone, and has its shape, counts as a copy: on all ranks it is the same, so
the mean of its gradients over ranks is its gradient for all their examples.

The gradient of looked-up rows, together with their ids, is an `IndexedSlices` of the variable. A step then aggregates
it like any other sparse gradient. The number of rows changes, so an update that uses the gradient must also use the ids
that belong to it: wherever the update uses the ids of the lookup, it gets the ids of the aggregated rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph import edit, gradients_hook
from parallax_runner.graph.boundary import boundary_of
from parallax_runner.graph.same_values import computation_of
from parallax_runner.graph.single_device_graph import Gradient

COPIES = gradients_hook.COPIES
# Ops, besides those that address rows, through which ids may reach an update.
CHANGES_FORM = frozenset({"Cast", "ExpandDims", "Identity", "Reshape", "Squeeze"})


@dataclass(frozen=True)
class OfValue:
    """The gradient (a tensor of the graph) of a value that was read from `variable`.

    `ids` are the ids of looked-up rows, or None for a copy of the whole variable. If the gradient of a copy is an
    `IndexedSlices`, `gradient` contains its values, and `indices` its indices.
    """

    variable: str
    gradient: tf.Tensor
    ids: tf.Tensor | None = None
    indices: tf.Tensor | None = None

    @property
    def is_distributable(self) -> bool:
        """Whether the gradient can be expressed as a gradient of the variable."""
        return self.ids is None or bool(self.ids.shape.rank)

    def recorded(self) -> Gradient:
        """Returns the gradient as if the hook had recorded it."""
        rows = self.indices if self.ids is None else self.ids
        return Gradient(self.variable, self.gradient.name, None if rows is None else rows.name)


def found_in(graph: tf.Graph, meta_graph: tf.MetaGraphDef) -> list[OfValue]:
    """Returns the gradients of values that were read from variables. `graph` contains the graph of `meta_graph`."""
    found = [_resolved(graph, *names) for names in names_in(meta_graph)]
    return [one for one in found if one is not None and one.is_distributable]


def names_in(meta_graph: tf.MetaGraphDef) -> list[tuple[str, str, str | None]]:
    """Returns the names of each value that is no variable and whose gradient was computed, of that gradient, and of the
    gradient's indices."""
    entries = map(json.loads, meta_graph.collection_def[gradients_hook.OF_VALUES].bytes_list.value)
    return [(entry["value"], entry["gradient"], entry["indices"]) for entry in entries]


def distribute(graph: tf.Graph, ends: list[tf.Operation], recorded: list[Gradient], found: list[OfValue]) -> bool:
    """Adds the gradients in `found` that reach `ends` to `recorded`, and makes their updates use the right ids.

    Returns whether the graph has changed. Raises CaptureError if an update uses the ids of looked-up rows for anything
    else than to address rows.
    """
    if not found:
        return False
    every = [*recorded, *(one.recorded() for one in found)]
    region = boundary_of(graph, ends, every).region
    used = [one for one in found if not region.isdisjoint(one.gradient.consumers())]
    recorded += [one.recorded() for one in used if one.ids is None]
    rows = [one for one in used if one.ids is not None]
    with graph.as_default():
        recorded += [_as_slices(one, region) for one in rows]
    return bool(rows)


def _resolved(graph: tf.Graph, value: str, gradient: str, indices: str | None) -> OfValue | None:
    of, grad = graph.get_tensor_by_name(value), graph.get_tensor_by_name(gradient)
    source = of
    while source.op.type in COPIES and source.op.inputs:
        source = source.op.inputs[0]
    if source.op.type in gradients_hook.LOOKUPS and indices is None:
        table = _looked_up_in(source.op)
        variable = None if table is None else gradients_hook.variable_name(table)
        return None if variable is None else OfValue(variable, grad, source.op.inputs[1])
    variable = _computed_from(of)
    if variable is None:
        return None
    if indices is not None:
        return OfValue(variable, grad, indices=graph.get_tensor_by_name(indices))
    return OfValue(variable, grad) if grad.shape == of.shape else None


def _computed_from(value: tf.Tensor) -> str | None:
    """Returns the variable from which a value with the variable's shape and dtype is computed, or None if the value
    also depends on anything else than constants."""
    ops = edit.ancestors([value.op], control=False)
    handles = [op for op in ops if op.type == "VarHandleOp"]
    others = [op for op in ops if op.type not in ("VarHandleOp", "ReadVariableOp")]
    if len(handles) != 1 or not all(map(_is_fixed, others)):
        return None
    handle = handles[0]
    is_alike = value.shape == tf.TensorShape(handle.get_attr("shape")) and value.dtype == handle.get_attr("dtype")
    return handle.name if is_alike else None


def _is_fixed(op: tf.Operation) -> bool:
    """Returns whether an op computes the same in every step from the same inputs."""
    return edit.is_plain(op) and not op.type.startswith("Placeholder")


def _looked_up_in(lookup: tf.Operation) -> tf.Tensor | None:
    """Returns the table of a lookup by rows, or None for a lookup along another dimension."""
    if lookup.get_attr("batch_dims"):
        return None
    if lookup.type != "GatherV2":
        return lookup.inputs[0]
    axis = tf.get_static_value(lookup.inputs[2])
    return lookup.inputs[0] if axis is not None and int(axis) == 0 else None


def _as_slices(one: OfValue, region: frozenset[tf.Operation]) -> Gradient:
    """Adds the gradient as an `IndexedSlices` of the variable, and connects the update to its rows and ids."""
    assert one.ids is not None
    row_shape = one.gradient.shape[one.ids.shape.rank :].as_list()
    with tf.control_dependencies(None), tf.name_scope(f"{one.gradient.op.name}/slices/"):
        raw = one.gradient.op.inputs[0]
        slices = gradients_hook.of_any_length(
            tf.IndexedSlices(tf.reshape(raw, [-1, *row_shape]), tf.reshape(one.ids, [-1]))
        )
        rows = _in_form(slices.values, one.ids.shape.rank, row_shape)
    uses = _uses_of_ids(one, region)
    edit.reconnect(one.gradient, rows, where=lambda op: op in region)
    for op, at in uses:
        given = op.inputs[at]
        with tf.control_dependencies(None), tf.name_scope(f"{op.name}/ids_of_gradient/"):
            ids = _in_form(slices.indices, given.shape.rank, [])
            op._update_input(at, tf.cast(ids, given.dtype))
    return Gradient(one.variable, slices.values.name, slices.indices.name)


def _in_form(rows: tf.Tensor, rank: int, row_shape: list[int]) -> tf.Tensor:
    """Returns rows whose ids have one dimension as rows whose ids have `rank` dimensions, all but the first of size
    1."""
    return rows if rank == 1 else tf.reshape(rows, [-1, *[1] * (rank - 1), *row_shape])


def _possible_ids(op: tf.Operation) -> list[int]:
    """Returns the positions of the inputs that contain several integers."""
    return [at for at, tensor in enumerate(op.inputs) if tensor.dtype.is_integer and tensor.shape.rank]


def _uses_of_ids(one: OfValue, region: frozenset[tf.Operation]) -> list[tuple[tf.Operation, int]]:
    """Returns the inputs of ops in the update region that are the ids of the gradient's rows.

    Raises CaptureError if such an op does not address rows.
    """
    assert one.ids is not None
    wanted = computation_of(one.ids)
    behind = edit.descendants([one.gradient], within=set(region))
    found = []
    for op in edit.in_order(set(region)):
        inputs = [at for at in _possible_ids(op) if computation_of(op.inputs[at]) == wanted]
        if not inputs or op.type in CHANGES_FORM or not _meets(op, behind, region):
            continue
        for at in inputs:
            _check_use(one, op, at)
            found.append((op, at))
    return found


def _meets(op: tf.Operation, behind: set[tf.Operation], region: frozenset[tf.Operation]) -> bool:
    """Returns whether the op, or an op that reads its results, also reads the gradient."""
    return op in behind or bool(behind & edit.descendants(op.outputs, within=set(region)))


def _check_use(one: OfValue, op: tf.Operation, at: int) -> None:
    names = [argument.name for argument in op.op_def.input_arg]
    addresses_rows = len(names) == len(op.inputs) and names[at] == "indices"
    adds_up_rows = op.type == "UnsortedSegmentSum" and names[at] == "segment_ids"
    if addresses_rows or adds_up_rows or edit.joins_rows(op) or op.type in ("Unique", "UniqueV2"):
        return
    raise CaptureError(
        f"the update of «{one.variable}» uses the ids of looked-up rows in «{op.name}» ({op.type}) together with the "
        "gradient of these rows. A step merges the rows of all workers, so ids may only address rows of a table there. "
        f"Compute the gradient of the variable «{one.variable}» itself, and use its values and indices"
    )
