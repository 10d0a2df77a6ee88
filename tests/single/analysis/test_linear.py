"""The analysis of a model with a norm over all gradients gives what one traversal for each variable gives.

The traversals that the analysis once made are kept here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.many_tables import make_model, make_step
from parallax_runner.analysis.classify import classify
from parallax_runner.analysis.compute_times import Moments
from parallax_runner.graph import edit
from parallax_runner.graph.boundary import Boundary, find_boundary
from parallax_runner.graph.heavy_ops import heavy_ops, weight
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step

TABLES = 6


def captured(front: str, tables: int = TABLES) -> SingleDeviceGraph:
    """Returns the captured graph of a model with tables of 5, 6 and so on rows."""
    sizes = [5 + number for number in range(tables)]
    features = {"dense": ((4, 13), "float32"), "categorical": ((4, tables), "int64"), "label": ((4,), "float32")}
    keras.utils.clear_session(free_memory=False)
    if front == "step":
        return capture_step(lambda: make_step(cardinalities=sizes, width=2), features, seed=1, options={})
    options = {"labels": "label", "sparse_updates": "lazy"}
    return capture_step(
        lambda: make_model(cardinalities=sizes, width=2, optimizer=front), features, seed=1, options=options
    )


@pytest.fixture(params=["adam", "step"], scope="module")
def single(request: pytest.FixtureRequest) -> SingleDeviceGraph:
    return captured(request.param)


@pytest.fixture
def graph(single: SingleDeviceGraph) -> tf.Graph:
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(single.meta_graph.graph_def, name="")
    return graph


@pytest.fixture
def boundary(graph: tf.Graph, single: SingleDeviceGraph) -> Boundary:
    return find_boundary(graph, single.train_op, single.gradients)


def test_the_region_needs_no_op_behind_a_gradient(
    graph: tf.Graph, single: SingleDeviceGraph, boundary: Boundary
) -> None:
    needed = edit.ancestors([graph.get_operation_by_name(single.train_op)], stop_at=boundary.tensors)
    behind = [edit.ancestors([graph.get_tensor_by_name(name).op], control=False) for name in boundary.tensors]
    assert boundary.region == needed.difference(*behind)
    assert boundary.region


def test_moments(graph: tf.Graph, single: SingleDeviceGraph, boundary: Boundary) -> None:
    gradients = {one.variable: [graph.get_tensor_by_name(one.values).op] for one in boundary.gradients}
    handles = [graph.get_operation_by_name(one.name) for one in single.variables]
    moments = Moments(op for ops in gradients.values() for op in ops)
    every = edit.ancestors(op for ops in gradients.values() for op in ops)
    weights = {op: weight(op) for op in heavy_ops(every)}
    assert moments.appear_at(gradients) == _appear_at(gradients, weights)
    for handle, found in moments.needed_at(handles).items():
        users = edit.descendants(handle.outputs, within=every)
        before = sum(weights[op] for op in weights.keys() - users) / sum(weights.values())
        assert found == (before if users else 0.0)


def _appear_at(gradients: Mapping[str, Any], weights: Mapping[tf.Operation, float]) -> dict[str, float]:
    needed = {name: edit.ancestors(ops) & weights.keys() for name, ops in gradients.items()}
    found: dict[str, float] = {}
    done: set[tf.Operation] = set()
    for name in sorted(needed, key=lambda name: (len(needed[name]), name)):
        done |= needed[name]
        found[name] = sum(weights[op] for op in done) / sum(weights.values())
    return found


def test_the_work_grows_with_the_number_of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the ops that all traversals find. Four times as many tables have four times as many ops; with one
    traversal for each table, the count grew 5.5 times."""
    visits = 0
    ancestors, descendants = edit.ancestors, edit.descendants

    def counted(original: Any) -> Any:
        def traverse(*args: Any, **kwargs: Any) -> Any:
            nonlocal visits
            found = original(*args, **kwargs)
            visits += len(found)
            return found

        return traverse

    monkeypatch.setattr(edit, "ancestors", counted(ancestors))
    monkeypatch.setattr(edit, "descendants", counted(descendants))
    counts = []
    for tables in (4, 16):
        visits = 0
        classify(captured("adam", tables))
        counts.append(visits)
    assert counts[1] < 4 * counts[0]
