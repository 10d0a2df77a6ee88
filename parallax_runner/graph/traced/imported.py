"""Imports a traced step, with its variables and gradients, into a TensorFlow 1 graph, in the form that capture
needs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import func_graph

from parallax_runner.errors import CaptureError
from parallax_runner.graph import edit, gradients_hook
from parallax_runner.graph.all_nodes import all_nodes
from parallax_runner.graph.traced.gradients import TapeGradient, ValueGradient
from parallax_runner.graph.traced.initial_draws import Draw, import_draws
from parallax_runner.graph.traced.order import keep_only_needed
from parallax_runner.graph.traced.trace import Trace
from parallax_runner.graph.traced.variables import TracedVariable

# Values up to this many bytes become constants in the graph. Larger values are read at run time from the memory of the
# process.
CONSTANT_BYTES = 4096
# The job in the device names of eager variables.
EAGER_JOB = "/job:localhost"


@dataclass(frozen=True)
class First:
    """The initial value of a variable: the output of `drawn`, a small `value`, or the current value of the eager
    variable."""

    traced: TracedVariable
    drawn: func_graph.FuncGraph | None = None
    captured: Mapping[str, np.ndarray] = field(default_factory=dict)
    value: np.ndarray | None = None

    @property
    def python_op(self) -> str | None:
        """The name of the op that reads the eager variable of this process, or None if the graph computes the value."""
        is_in_graph = self.drawn is not None or self.value is not None
        return None if is_in_graph else f"{self._scope}PyFunc"

    @property
    def _scope(self) -> str:
        return f"{self.traced.op_name}/initial_value/"

    def tensor(self) -> Any:
        """Returns the initial value as a tensor in the default graph."""
        variable = self.traced.variable
        with tf.name_scope(self._scope):
            if self.drawn is not None:
                # `add_variables` has imported all draws.
                return tf.get_default_graph().get_tensor_by_name(f"{self._drawn_prefix}{self.drawn.outputs[0].name}")
            if self.value is not None:
                return tf.constant(self.value)
            return tf.ensure_shape(tf.numpy_function(variable.numpy, [], variable.dtype), variable.shape)

    @property
    def _drawn_prefix(self) -> str:
        return f"{self.traced.op_name}/initial_value/drawn/"

    def draw(self) -> Draw | None:
        """Returns the graph that draws the value, or None. Adds the tensors that it captures to the default graph."""
        if self.drawn is None:
            return None
        with tf.name_scope(f"{self.traced.op_name}/initial_value/"):
            fed = {name: tf.constant(value) for name, value in self.captured.items()}
        definition = without_captured(without_colocation(self.drawn.as_graph_def()), fed)
        return Draw(self._drawn_prefix, definition, fed)


def first_of(traced: TracedVariable) -> First:
    """Returns the initial value of a variable. Call this function eagerly, before the graph is built."""
    variable = traced.variable
    if traced.initial is not None:
        graph = func_graph.func_graph_from_py_func("initial", traced.initial, (), {})
        if not any(outer.dtype == tf.resource for outer, _ in graph.captures):
            return First(traced, graph, {inner.name: outer.numpy() for outer, inner in graph.captures})
        # The initializer's seed is a variable, and other draws change that seed. The value is therefore drawn now.
        variable.assign(traced.initial())
    small = variable.dtype.size * (variable.shape.num_elements() or 0) <= CONSTANT_BYTES
    return First(traced, value=variable.numpy() if small else None)


def add_variables(firsts: Sequence[First]) -> dict[int, Any]:
    """Creates the variables in the default graph. Returns a dict from the id of each traced handle to the new
    variable."""
    found = {}
    import_draws(filter(None, (first.draw() for first in firsts)))
    for first in firsts:
        traced = first.traced
        made = tf.Variable(
            initial_value=first.tensor(),
            trainable=traced.variable.trainable,
            name=traced.op_name,
            use_resource=True,
            dtype=traced.variable.dtype,
            aggregation=tf.VariableAggregation[traced.aggregation.upper()],
        )
        if made.op.name != traced.op_name:
            raise CaptureError(f"variable «{traced.name}» has the same name as another op: rename the variable")
        found[traced.variable.handle._id] = made
    return found


def import_step(
    trace: Trace, wanted: Mapping[str, Any], variables: Mapping[int, Any], features: Mapping[str, Any], *, name: str
) -> tuple[dict[str, Any], list[tf.Operation]]:
    """Imports a traced step into the default graph. Returns the step's `wanted` tensors and its writes.

    The names of the step's ops begin with `name`, and a number if another op has this name.

    `variables` contains the results of `add_variables` and `add_tables`, and `features` contains the placeholders by
    name. Gradients of these variables are added to the collection of `gradients_hook`.

    Raises CaptureError if the step uses a resource that cannot be imported.
    """
    ends = sorted((op for op in trace.graph.control_outputs if not _only_reads(op)), key=lambda op: op.name)
    starts = [*(tensor.op for tensor in wanted.values()), *ends]
    keep_only_needed(trace.graph, starts)
    fed = _fed(trace, edit.ancestors(starts), variables, features)
    definition = tf.graph_util.extract_sub_graph(
        without_colocation(trace.graph.as_graph_def()), [op.name for op in starts]
    )
    definition = without_captured(definition, fed)
    returned = [*(tensor.name for tensor in wanted.values()), *(op.name for op in ends)]
    scope = f"{tf.get_default_graph().unique_name(name)}/"
    found = tf.import_graph_def(definition, fed, return_elements=returned, name=scope)
    _add_gradients(trace, {node.name for node in definition.node}, variables, scope)
    return dict(zip(wanted, found, strict=False)), found[len(wanted) :]


def _fed(
    trace: Trace, needed: Collection[Any], variables: Mapping[int, Any], features: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the tensors that replace the step's inputs and captures, by the names of these, if the step needs
    them."""
    fed = {}
    for feature, inner in trace.inputs.items():
        if inner.op in needed:
            fed[inner.name] = features[feature]
    for outer, inner in trace.graph.captures:
        if inner.op in needed:
            fed[inner.name] = captured(outer, variables)
    return fed


def _add_gradients(trace: Trace, kept: Collection[str], variables: Mapping[int, Any], scope: str) -> None:
    """Adds the gradients to the collections of `gradients_hook`. `kept` contains the names of the imported ops."""
    for gradient in trace.gradients:
        if isinstance(gradient, ValueGradient):
            _add_gradient_of_value(gradient, kept, scope)
        elif gradient.handle_id in variables and gradient.values.op.name in kept:
            _add_gradient(variables[gradient.handle_id].op.name, gradient, scope)


def _add_gradient(variable: str, gradient: TapeGradient, scope: str) -> None:
    indices = None if gradient.indices is None else f"{scope}{gradient.indices.name}"
    entry = {"variable": variable, "values": f"{scope}{gradient.values.name}", "indices": indices}
    tf.add_to_collection(gradients_hook.COLLECTION, json.dumps(entry))


def _add_gradient_of_value(one: ValueGradient, kept: Collection[str], scope: str) -> None:
    gradient = one.gradient.values if isinstance(one.gradient, tf.IndexedSlices) else one.gradient
    if gradient.op.name in kept and one.value.op.name in kept:
        entry = gradients_hook.entry_of_value(one.value.name, one.gradient, scope)
        tf.add_to_collection(gradients_hook.OF_VALUES, entry)


def captured(outer: Any, variables: Mapping[int, Any]) -> Any:
    """Returns what replaces a captured eager tensor in the default graph: a constant, or the handle of a variable or of
    a lookup table in `variables`. Raises CaptureError for any other resource."""
    if outer.dtype != tf.resource:
        return tf.constant(outer.numpy())
    if outer._id in variables:
        return variables[outer._id].handle
    raise CaptureError(
        "the step uses a resource that is neither one of its variables nor a lookup table: an iterator, or a variable "
        "that was created elsewhere; create variables in the model or in the function that makes the step; the "
        f"resource is {outer!r}"
    )


def _only_reads(op: Any) -> bool:
    return op.type in ("ReadVariableOp", "ResourceGather", "VariableShape", "Placeholder", "Const")


def without_captured(definition: Any, fed: Iterable[str]) -> Any:
    """Removes the placeholders for captured tensors, because their names contain a counter that differs between
    processes.

    `fed` contains the names of the placeholders' outputs, which the import replaces with other tensors.
    """
    captured = {name.split(":")[0] for name in fed}
    kept = [node for node in definition.node if node.name not in captured]
    del definition.node[:]
    definition.node.extend(kept)
    return definition


def without_colocation(definition: Any) -> Any:
    """Removes colocation constraints, because some constraints refer to placeholders that are not imported.

    Also removes the devices of eager variables, which a cluster with servers does not have.
    """
    for node in all_nodes(definition):
        node.attr.pop("_class", None)
        if EAGER_JOB in node.device:
            node.device = ""
    return definition
