"""Train ops of a script that take turns: one may be run without what the other needs."""

from __future__ import annotations

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.script_graph import capture_script
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.routes.allreduce import dense as allreduce
from tests.single.small_models import planned

WIDTH = 8


def layer(x: tf.Tensor, name: str) -> tf.Tensor:
    return tf.tanh(tf.matmul(x, tf.get_variable(name, [WIDTH, WIDTH])))


def adversaries(*, together: bool = False) -> tf.Graph:
    """«real_step» trains the critic on «real» and on what the maker makes of «noise», «made_step» trains the maker."""
    graph = tf.Graph()
    with graph.as_default():
        noise = tf.placeholder(tf.float32, [4, WIDTH], name="noise")
        real = tf.placeholder(tf.float32, [4, WIDTH], name="real")
        with tf.variable_scope("maker"):
            made = tf.identity(layer(layer(noise, "first"), "second"), name="made")
        with tf.variable_scope("critic", reuse=tf.AUTO_REUSE):
            of_real, of_made = (tf.reduce_mean(layer(x, "kernel")) for x in (real, made))
        steps = []
        for name, loss, scope in (("real_step", of_made - of_real, "critic"), ("made_step", -of_made, "maker")):
            variables = tf.trainable_variables(scope)
            steps.append(tf.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=variables, name=name))
        if together:
            tf.group(*steps, name="both")
    return graph


def rewritten(single: SingleDeviceGraph) -> tf.Graph:
    return rewrite_for_rank(single, planned(single, comm="mpi"), rank=0, seed=1).graph


def placeholders(graph: tf.Graph, name: str) -> set[str]:
    needed = edit.ancestors([graph.get_operation_by_name(name)])
    return {op.name for op in needed if op.type == "Placeholder"}


def test_each_needs_what_it_needs_on_one_device() -> None:
    graph = rewritten(capture_script(adversaries()))
    assert placeholders(graph, "made_step") == {"noise"}
    assert placeholders(graph, "real_step") == {"noise", "real"}
    assert placeholders(graph, "maker/made") == {"noise"}


def test_what_is_asked_for_together_is_one_part() -> None:
    assert capture_script(adversaries(together=True)).apart == ()
    parts = capture_script(adversaries()).apart
    assert [sorted(part) for part in parts] == [["critic/kernel"], ["maker/first", "maker/second"]]


def test_what_a_model_says_waits_for_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an actor and a critic with a loss each, trained in one step, the actor is asked alone between steps."""
    monkeypatch.setattr(allreduce, "LEAST_BYTES", 1)
    monkeypatch.setattr(allreduce, "REST_BYTES", 0)
    graph = tf.Graph()
    with graph.as_default():
        seen = tf.placeholder(tf.float32, [4, WIDTH], name="seen")
        returns = tf.placeholder(tf.float32, [4], name="returns")
        value = tf.reduce_sum(layer(seen, "critic"), axis=1)
        policy = tf.identity(layer(layer(layer(seen, "first"), "second"), "third"), name="policy")
        losses = [tf.reduce_mean(tf.square(value - returns)), tf.reduce_mean(policy)]
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        pairs = [
            (tf.gradients(losses[number], one)[0], one)
            for number, one in zip((0, 1, 1, 1), tf.trainable_variables(), strict=True)
        ]
        optimizer.apply_gradients(pairs, name="step")
    distributed = rewritten(capture_script(graph))
    assert placeholders(distributed, "policy") == {"seen"}
    assert placeholders(distributed, "step") == {"seen", "returns"}
