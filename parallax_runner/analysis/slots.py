"""Determines which variable each optimizer slot belongs to. Uses the data flow of the update instead of names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.rank_dependence import RankDependence
from parallax_runner.graph import edit
from parallax_runner.graph.boundary import Boundary
from parallax_runner.graph.edit import is_write
from parallax_runner.graph.observers import is_number
from parallax_runner.graph.single_device_graph import Variable

# Ops whose output elements do not correspond to single positions of the input.
MIXES_PLACES = frozenset(
    {"All", "Any", "EuclideanNorm", "L2Loss", "Max", "Mean", "Min", "Prod", "Rank", "Shape", "ShapeN", "Size", "Sum"}
)
READS = frozenset({"ReadVariableOp", "ResourceGather"})


@dataclass
class Sources:
    """The elementwise sources of a written value: gradients (by the names of their variables), and variables whose
    values are read."""

    gradients: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)


def slot_owners(
    graph: tf.Graph,
    boundary: Boundary,
    variables: Iterable[Variable],
    dependence: RankDependence,
) -> dict[str, str]:
    """Returns the variable that each optimizer slot belongs to.

    A slot either shares a fused apply op with its variable, or the update region computes the slot's new values,
    element by element, from one of these sources: the gradient of one variable with the same shape, that variable's
    values (as in an average of weights), or that variable's slots. A scalar that all elements share, such as a global
    norm, is ignored.
    """
    by_name = {variable.name: variable for variable in variables}
    trained = {gradient.variable for gradient in boundary.gradients}
    writes = _writes_in(boundary.region, by_name)
    owners = _owners_in_fused_ops(writes, trained)
    others = [(op, by_name[written[0]]) for op, written in writes if written[0] not in trained]
    found = _sources_by_variable(graph, boundary, dependence, others)
    before = -1
    while len(owners) > before:  # the value that an update writes to a slot can depend on another slot
        before = len(owners)
        for name, sources in found.items():
            if name in owners:
                continue
            owner = _owner_among(_candidates(name, sources, trained, owners), name, by_name)
            if owner is not None:
                owners[name] = owner
    return owners


def _writes_in(region: Iterable[tf.Operation], by_name: Mapping[str, Variable]) -> list[tuple[tf.Operation, list[str]]]:
    """Returns the region's writes in the order of their names, each with the variables among its inputs. The first of
    them is the variable that the op is made for."""
    found = []
    for op in sorted(region, key=lambda op: op.name):
        written = [handle.name for handle in edit.handle_of(op) if handle.name in by_name]
        if written and is_write(op):
            found.append((op, written))
    return found


def _owners_in_fused_ops(writes: Iterable[tuple[tf.Operation, list[str]]], trained: set[str]) -> dict[str, str]:
    """Returns the owner of each slot that a fused apply op updates together with its variable."""
    owners: dict[str, str] = {}
    for _, handles in writes:
        if handles[0] in trained:
            owners.update({slot: handles[0] for slot in handles[1:] if slot not in trained})
    return owners


def _sources_by_variable(
    graph: tf.Graph, boundary: Boundary, dependence: RankDependence, writes: Iterable[tuple[tf.Operation, Variable]]
) -> dict[str, Sources]:
    """Returns the sources of each variable that the writes set."""
    found: dict[str, Sources] = {}
    of_gradients = _variables_of_gradients(boundary)
    before_gradients = edit.ancestors(graph.get_tensor_by_name(name).op for name in boundary.tensors)
    for op, variable in writes:
        is_scalar = is_number(tf.TensorShape(variable.shape))
        sources = _sources(op, boundary.region, of_gradients, is_scalar=is_scalar)
        every = found.setdefault(variable.name, Sources())
        every.gradients |= sources.gradients
        # An average of weights is not a slot if it depends on a rank's data or draws, or if a forward pass waits for
        # it.
        is_own = op in before_gradients or dependence.differs(op)
        if not is_own:
            every.read |= sources.read
    return found


def _candidates(slot: str, sources: Sources, trained: set[str], owners: Mapping[str, str]) -> set[str]:
    """Returns the variables that the slot's new values are computed from, also by way of other slots."""
    others = sources.read - {slot}
    behind_others = {owners[other] for other in others if other in owners}
    return sources.gradients | (sources.read & trained) | behind_others


def _owner_among(candidates: set[str], slot: str, by_name: Mapping[str, Variable]) -> str | None:
    """Returns the only candidate that has the slot's shape. Of several, returns the first whose name begins the slot's
    name. Returns None if there is none."""
    alike = sorted(each for each in candidates if by_name[each].shape == by_name[slot].shape)
    if len(alike) == 1:
        return alike[0]
    return next((each for each in alike if slot.startswith(each + "/")), None)


def _variables_of_gradients(boundary: Boundary) -> dict[str, set[str]]:
    """Returns the variables of each tensor that contains the values or indices of gradients."""
    found: dict[str, set[str]] = {}
    for gradient in boundary.gradients:
        for name in (gradient.values, gradient.indices):
            if name is not None:
                found.setdefault(name, set()).add(gradient.variable)
    return found


def _sources(
    write: tf.Operation,
    region: frozenset[tf.Operation],
    of_gradients: Mapping[str, set[str]],
    *,
    is_scalar: bool,
) -> Sources:
    """Returns the sources of the values that an op in the region writes to a variable. `is_scalar` is set if the
    variable has a single element."""
    found, seen = Sources(), set[str]()
    stack = list(write.inputs[1:])
    while stack:
        tensor = stack.pop()
        is_shared = is_number(tensor.shape) and not is_scalar
        if is_shared or tensor.name in seen:
            continue
        seen.add(tensor.name)
        if tensor.name in of_gradients:
            found.gradients |= of_gradients[tensor.name]
        elif tensor.op in region and tensor.op.type not in MIXES_PLACES:
            if tensor.op.type in READS:
                found.read.update(handle.name for handle in edit.handle_of(tensor.op))
            stack += _values_behind(tensor)
    return found


def _values_behind(tensor: tf.Tensor) -> list[tf.Tensor]:
    """Returns the inputs from which an elementwise op computes a tensor, without the handles of variables."""
    op = tensor.op
    inputs = [op.inputs[tensor.value_index]] if op.type == "IdentityN" else op.inputs
    return [each for each in inputs if each.dtype != tf.resource]
