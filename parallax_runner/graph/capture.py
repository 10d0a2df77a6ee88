"""Runs a model's function and returns the graph that the function builds as a `SingleDeviceGraph`."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import variable_pb2

from parallax_runner.errors import CaptureError, ParallaxError
from parallax_runner.graph import edit, gradients_hook, references
from parallax_runner.graph.boundary import find_boundary
from parallax_runner.graph.components import placeholder_name
from parallax_runner.graph.constant_sizes import check_constants, constants_of
from parallax_runner.graph.device_setter import ModelGraph
from parallax_runner.graph.fingerprint import fingerprint_of
from parallax_runner.graph.generators import seeded_generators
from parallax_runner.graph.gradients_of_values import distribute, found_in
from parallax_runner.graph.marks import marks_behind
from parallax_runner.graph.metric import AnyMetric, checked_metrics, metrics_of_training, named_in_graph, step_sums
from parallax_runner.graph.own_aggregation import refuse_own_aggregation
from parallax_runner.graph.restored_values import check_restored_values
from parallax_runner.graph.returned import checked
from parallax_runner.graph.single_device_graph import Gradient, MetricSums, SingleDeviceGraph, Variable
from parallax_runner.graph.tables import refuse_mutable_tables
from parallax_runner.process.user_code import must_not_exit, place_of

# Without this line, TensorFlow 2 warns in every run that its version 1 interface is deprecated.
tf.logging.set_verbosity(tf.logging.ERROR)
AGGREGATION = "VARIABLE_AGGREGATION_"
# The attribute of Keras' global state that contains the seed generator for layers without their own generator.
KERAS_SEEDS = "global_seed_generator"
# The attribute that maps each name to the number of objects with that name.
KERAS_NAMES = "object_name_uids"


def capture(
    build: Callable[[dict[str, tf.Tensor]], Mapping[str, Any]],
    features: Mapping[str, tuple[tuple[int | None, ...], str]],
    *,
    seed: int,
) -> SingleDeviceGraph:
    """Builds a model's graph for one replica.

    `build` receives one placeholder per feature. `features` maps the name of each feature to its shape (batch dimension
    first, None for any size) and dtype. During the build, the random generators of Python, NumPy and TensorFlow are
    seeded with `seed`, and Keras numbers its layers from the beginning. Every build in every process therefore creates
    the same graph.

    Raises CaptureError if the result is not a training graph that can be distributed.
    """
    begin_afresh()
    graph = ModelGraph()
    with graph.as_default(), seeded_generators(seed):
        tf.set_random_seed(seed)
        placeholders = {
            name: tf.placeholder(dtype, shape, name=placeholder_name(name)) for name, (shape, dtype) in features.items()
        }
        features_given = _Features(placeholders)
        returned = checked(called(lambda: build(features_given), sorted(placeholders), features_given))
        # With a separate op, the name refers to a value even if the model's output is a reference.
        outputs = {
            name: tf.identity(tensor, name=f"outputs/{name}") for name, tensor in returned.get("outputs", {}).items()
        }
        metrics, validation_metrics = _metrics_of(returned)
    return from_graph(
        graph,
        features={name: tensor.name for name, tensor in placeholders.items()},
        loss=returned["loss"],
        train_op=returned["train_op"],
        validation_loss=returned.get("validation_loss"),
        validation_metric=returned.get("validation_metric"),
        outputs=outputs,
        metrics=metrics,
        validation_metrics=validation_metrics,
    )


def _metrics_of(returned: Mapping[str, Any]) -> tuple[MetricSums | None, MetricSums | None]:
    """Returns the metrics for training and for validation. If the model returns a validation loss but no
    `validation_metrics`, the training metrics are also used for validation. Metrics of groups are only for
    validation."""
    given = {key: checked_metrics(returned.get(key, {}), key) for key in ("metrics", "validation_metrics")}
    is_validated = returned.get("validation_loss") is not None
    if given["validation_metrics"] and not is_validated:
        raise CaptureError("the model returns validation_metrics without a validation_loss: return both")
    trained = metrics_of_training(given["metrics"], is_validated=is_validated)
    metrics = _in_graph(trained, "metrics")
    if not is_validated:
        return metrics, None
    if "validation_metrics" in returned:
        return metrics, _in_graph(given["validation_metrics"], "validation_metrics")
    if len(trained) == len(given["metrics"]):
        return metrics, metrics
    return metrics, _in_graph(given["metrics"], "validation_metrics")


def _in_graph(metrics: Mapping[str, AnyMetric], key: str) -> MetricSums | None:
    sums = step_sums(metrics)
    return named_in_graph(sums, sums.every if sums else (), key)


def from_graph(
    graph: tf.Graph,
    *,
    features: dict[str, str],
    loss: tf.Tensor,
    train_op: tf.Operation | tf.Tensor,
    validation_loss: tf.Tensor | None = None,
    validation_metric: str | None = None,
    outputs: Mapping[str, tf.Tensor] | None = None,
    metrics: MetricSums | None = None,
    validation_metrics: MetricSums | None = None,
) -> SingleDeviceGraph:
    """Returns the `SingleDeviceGraph` of a graph that was built after `parallax_runner` was imported."""
    train_op = getattr(train_op, "op", train_op)
    check_constants(constants_of(graph))
    with graph.as_default():
        meta_graph = references.to_resources(tf.train.export_meta_graph())
    refuse_mutable_tables(meta_graph.graph_def)
    variables = variables_of(meta_graph)
    imported = tf.Graph()
    with imported.as_default():
        tf.import_graph_def(meta_graph.graph_def, name="")
    check_restored_values(imported, variables)
    recorded = recorded_in(meta_graph, variables)
    refuse_own_aggregation(imported, recorded)
    ends = [imported.get_operation_by_name(train_op.name)]
    if distribute(imported, ends, recorded, found_in(imported, meta_graph)):
        meta_graph.graph_def.CopyFrom(imported.as_graph_def())
    gradients = find_boundary(imported, train_op.name, recorded).gradients
    if not gradients:
        raise CaptureError(
            f"no gradient reaches the train op «{train_op.name}», so there is nothing to distribute. Compute the "
            "gradients of variables: in a graph with tf.gradients, compute_gradients or minimize, and after importing "
            f"parallax_runner; in a training step with GradientTape.gradient{gradients_hook.where_else(graph)}"
        )
    _refuse_updates_behind(imported, train_op.name, recorded)
    _refuse_what_nobody_feeds(imported, [train_op.name, loss.op.name], features.values())
    return SingleDeviceGraph(
        meta_graph=meta_graph,
        features=features,
        loss=loss.name,
        train_op=train_op.name,
        validation_loss=None if validation_loss is None else validation_loss.name,
        validation_metric=validation_metric,
        outputs={name: tensor.name for name, tensor in (outputs or {}).items()},
        metrics=metrics,
        validation_metrics=validation_metrics,
        variables=variables,
        gradients=gradients,
        fingerprint=fingerprint_of(meta_graph.graph_def),
        callbacks=tuple(getattr(graph, "_py_funcs_used_in_graph", ())),
    )


def _refuse_updates_behind(graph: tf.Graph, train_op: str, gradients: Iterable[Gradient]) -> None:
    """Raises CaptureError if the train op's gradients depend on an update that uses other gradients and is not part of
    the train op.

    A step would run that update with each rank's own gradients instead of aggregated gradients.
    """
    names = frozenset(name for one in gradients for name in (one.values, one.indices) if name)
    start = [graph.get_operation_by_name(train_op)]
    needed = edit.ancestors(start)
    made = dict.fromkeys((graph.get_tensor_by_name(one.values).op for one in gradients), 1)
    uses_gradient = marks_behind(needed, made, control=False)
    for op in edit.in_order(needed - edit.ancestors(start, stop_at=names)):
        if edit.is_write(op) and uses_gradient[op]:
            raise CaptureError(
                f"the train op's gradients depend on «{op.name}», an update that uses other gradients and is not part "
                "of the train op. Compute all gradients of a step before its first update, and put both updates into "
                "the train op (tf.group)"
            )


def _refuse_what_nobody_feeds(graph: tf.Graph, fetched: list[str], features: Collection[str]) -> None:
    for op in edit.in_order(edit.ancestors(map(graph.get_operation_by_name, fetched))):
        if op.type == "Placeholder" and op.outputs[0].name not in features:
            raise CaptureError(
                f"the model has a placeholder «{op.name}» that is not fed. Read data from the features, and "
                "pass numbers as arguments of the model or optimizer"
            )


def called(function: Callable[[], Any], names: list[str], features: _Features | None = None) -> Any:
    """Calls a model's function and returns its result.

    Raises CaptureError with the line where the function failed. If the function read a feature that does not exist, the
    error lists the existing features (`names`).
    """
    try:
        with must_not_exit("the model's function", CaptureError):
            return function()
    except ParallaxError:
        raise
    except Exception as error:
        if features is not None and features.missing is not None:
            raise CaptureError(
                f"the model reads the feature {features.missing!r}, but the data has only {names}: "
                "choose data that fits the model (data=…)"
            ) from error
        raise CaptureError(
            f"the model's function failed at {place_of(error)}: {type(error).__name__}: {error}"
        ) from error


class _Features(dict[str, tf.Tensor]):
    """The placeholders by name. If the model reads a name that does not exist, that name is stored in `missing`."""

    missing: str | None = None

    def __missing__(self, name: str) -> tf.Tensor:
        self.missing = name
        raise KeyError(name)


def begin_afresh() -> None:
    """Resets Keras if Keras is imported. Keras then numbers layers and draws seeds as in a new process."""
    naming = sys.modules.get("keras.src.utils.naming")
    if naming is not None:
        naming.reset_uids()
        state = sys.modules["keras.src.backend.common.global_state"]
        state.set_global_attribute(KERAS_SEEDS, None)


@contextmanager
def keras_names_kept() -> Iterator[None]:
    """Makes Keras number layers and draw seeds after the `with` block as if the block had not run."""
    import keras.src.backend.common.global_state as state

    names, seeds = (state.get_global_attribute(each) for each in (KERAS_NAMES, KERAS_SEEDS))
    names = copy.copy(names)
    try:
        yield
    finally:
        state.set_global_attribute(KERAS_NAMES, names)
        state.set_global_attribute(KERAS_SEEDS, seeds)


def variables_of(meta_graph: tf.MetaGraphDef) -> tuple[Variable, ...]:
    """Returns the global and local variables of a graph that contains no reference variables."""
    handles = {node.name: node for node in meta_graph.graph_def.node if node.op == "VarHandleOp"}
    found: dict[str, Variable] = {}
    for collection in (tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.LOCAL_VARIABLES):
        for serialized in meta_graph.collection_def[collection].bytes_list.value:
            proto = variable_pb2.VariableDef.FromString(serialized)
            name = proto.variable_name.split(":")[0]
            if name not in found:
                found[name] = _variable(proto, handles[name], saved=collection == tf.GraphKeys.GLOBAL_VARIABLES)
    return tuple(_as_one(found.values()))


def _as_one(variables: Iterable[Variable]) -> Iterator[Variable]:
    """Yields the variables. If some pieces of a partitioned variable are missing, each existing piece becomes a
    separate variable.

    This is necessary because TensorFlow assigns wrong names to the slots of partitioned variables inside a variable
    scope.
    """
    variables = list(variables)
    sizes: Counter[str] = Counter()
    for variable in variables:
        sizes[variable.full_name] += math.prod(variable.shape)
    for variable in variables:
        if sizes[variable.full_name] == math.prod(variable.full_shape):
            yield variable
        else:
            origin = (0,) * len(variable.shape)
            yield dataclasses.replace(variable, full_name=variable.name, full_shape=variable.shape, offset=origin)


def _variable(proto: variable_pb2.VariableDef, handle: tf.NodeDef, *, saved: bool) -> Variable:
    shape = tf.TensorShape(handle.attr["shape"].shape)
    if not shape.is_fully_defined():
        raise CaptureError(f"variable «{handle.name}» has shape {shape}: give it a fully defined shape")
    sizes = tuple(shape.as_list())
    piece = proto.save_slice_info_def
    return Variable(
        name=handle.name,
        shape=sizes,
        dtype=tf.as_dtype(handle.attr["dtype"].type).name,
        initializer=proto.initializer_name,
        saved=saved,
        full_name=piece.full_name or handle.name,
        full_shape=tuple(piece.full_shape) or sizes,
        offset=tuple(piece.var_offset) or (0,) * len(sizes),
        aggregation=variable_pb2.VariableAggregation.Name(proto.aggregation).removeprefix(AGGREGATION).lower(),
        is_trainable=proto.trainable,
    )


def recorded_in(meta_graph: tf.MetaGraphDef, variables: Iterable[Variable]) -> list[Gradient]:
    """Returns the gradients of these variables that were recorded while the graph was built."""
    known = {variable.name for variable in variables}
    entries = [
        Gradient(**json.loads(entry)) for entry in meta_graph.collection_def[gradients_hook.COLLECTION].bytes_list.value
    ]
    return [entry for entry in entries if entry.variable in known]
