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
    owners: dict[str, str] = {}
    found: dict[str, Sources] = {}
    of_gradients = _variables_of_gradients(boundary)
    before_gradients = edit.ancestors(graph.get_tensor_by_name(name).op for name in boundary.tensors)
    for op in sorted(boundary.region, key=lambda op: op.name):
        handles = [handle.name for handle in edit.handle_of(op) if handle.name in by_name]
        if not handles or not is_write(op):
            continue
        if handles[0] in trained:
            owners.update({slot: handles[0] for slot in handles[1:] if slot not in trained})
            continue
        sources = _sources(
            op, boundary.region, of_gradients, is_scalar=is_number(tf.TensorShape(by_name[handles[0]].shape))
        )
        # An average of weights is not a slot if it depends on a rank's data or draws, or if a forward pass waits for
        # it.
        is_own = op in before_gradients or dependence.differs(op)
        every = found.setdefault(handles[0], Sources())
        every.gradients |= sources.gradients
        every.read |= set() if is_own else sources.read

    def owner_of(name: str, candidates: set[str]) -> str | None:
        alike = sorted(each for each in candidates if by_name[each].shape == by_name[name].shape)
        named = [each for each in alike if name.startswith(each + "/")]
        return alike[0] if len(alike) == 1 else named[0] if named else None

    candidates = {name: sources.gradients | (sources.read & trained) for name, sources in found.items()}
    before = -1
    while len(owners) > before:  # the value that an update writes to a slot can depend on another slot
        before = len(owners)
        for name, sources in found.items():
            behind = candidates[name] | {owners[slot] for slot in sources.read - {name} if slot in owners}
            owner = owner_of(name, behind)
            if name not in owners and owner is not None:
                owners[name] = owner
    return owners


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
        if tensor.name in seen or (is_number(tensor.shape) and not is_scalar):
            continue
        seen.add(tensor.name)
        if tensor.name in of_gradients:
            found.gradients |= of_gradients[tensor.name]
        elif tensor.op in region and tensor.op.type not in MIXES_PLACES:
            if tensor.op.type in READS:
                found.read |= {handle.name for handle in edit.handle_of(tensor.op)}
            inputs = [tensor.op.inputs[tensor.value_index]] if tensor.op.type == "IdentityN" else tensor.op.inputs
            stack += [each for each in inputs if each.dtype != tf.resource]
    return found
