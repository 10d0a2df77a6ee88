"""Which runs search, and what the driver asks between two segments of the training."""

from __future__ import annotations

import ast
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.config.frozen import SCRIPT, from_plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver import process_run, supervise
from parallax_runner.driver.epochs import Epochs
from parallax_runner.driver.partition_search import planned
from parallax_runner.driver.segments import Segments
from parallax_runner.driver.trainer import segments_of
from parallax_runner.errors import PlanError
from parallax_runner.graph.script_graph import capture_script
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.plan import Plan
from parallax_runner.track.tracker import NoTracker
from tests.single.plans import plan_of


def captured(*, fills_queue: bool) -> SingleDeviceGraph:
    """A script whose ids come from a queue that TensorFlow fills, or from a constant."""
    with tf.Graph().as_default() as graph:
        ids = tf.constant([1, 2])
        if fills_queue:
            ids = tf.train.batch([tf.constant(3)], 2)
        table = tf.get_variable("table", [6, 2])
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ids))
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    return capture_script(graph)


def config_of(name: str, target: str = SCRIPT, **train: Any) -> RunConfig:
    partition = {"name": name, "min": 1, "steps_per_trial": 4}
    return from_plain({"action": "train", "partition": partition, "model": {"_target_": target}, "train": train})


def plan_for(single: SingleDeviceGraph) -> Plan:
    return plan_of(classify(single), comm="ps")


def test_a_script_that_fills_queues_cannot_search() -> None:
    """The queues close with the session of a plan."""
    filled, fed = captured(fills_queue=True), captured(fills_queue=False)
    with pytest.raises(PlanError, match=r"^partition=search: the script fills queues"):
        planned(config_of("search"), plan_for(filled), filled)
    assert planned(config_of("search"), plan_for(fed), fed) == plan_for(fed)
    assert planned(config_of("fixed"), plan_for(filled), filled) == plan_for(filled)
    # The driver feeds the batches of a model, whatever queues its graph has.
    assert planned(config_of("search", "models.lm.build"), plan_for(filled), filled) == plan_for(filled)


def test_a_run_without_epochs_and_search_is_one_segment() -> None:
    plan = plan_for(captured(fills_queue=False))
    record: Any = SimpleNamespace(workers=2)
    alone: Any = SimpleNamespace(config=config_of("fixed"), planned=SimpleNamespace(plan=plan), make_epochs=None)
    segments = segments_of(alone, NoTracker())(record, None)
    assert type(segments) is Segments
    assert segments.begin_attempt(alone.config, plan) == (alone.config, plan)
    assert (segments.handlers(), segments.answer(), segments.summary_fields()) == ({}, None, {})
    assert segments.last_plan(plan) is plan
    waiting = config_of("fixed", patience=2, validate_steps=5)
    patient: Any = SimpleNamespace(config=waiting, planned=SimpleNamespace(plan=plan), make_epochs=None)
    assert type(segments_of(patient, NoTracker())(record, None)) is Epochs


@pytest.mark.parametrize("function", [process_run._run_and_record, supervise.supervise, supervise._listener])
def test_the_main_path_of_the_driver_does_not_know_the_search(function: Any) -> None:
    names = {node.id for node in ast.walk(ast.parse(inspect.getsource(function))) if isinstance(node, ast.Name)}
    assert "segments" in names
    assert not [name for name in names if "search" in name.lower()]
