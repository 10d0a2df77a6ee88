"""Graphs of scripts: which ops are a step, and that gradients are recorded whichever import comes first."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

import parallax_runner as parallax
from parallax_runner.analysis.classify import classify
from parallax_runner.errors import CaptureError
from parallax_runner.graph.script_graph import LOSS, TRAIN_OP, capture_script

ROOT = Path(__file__).parents[3]
BUILD = """
graph = tf.Graph()
with graph.as_default():
    table, w = tf.get_variable("table", [6, 2]), tf.get_variable("w", [2])
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [0, 1]) * w)
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
"""
END = """
from parallax_runner.graph.script_graph import capture_script
single = capture_script(graph)
recorded = [len(graph.get_collection(f"parallax_runner/{name}")) for name in ("gradients", "losses")]
raw = [node for node in single.meta_graph.graph_def.node if node.name.endswith("/raw/values")]
print(len(single.gradients), *recorded, len(raw), single.fingerprint)
"""


def captured_in(program: str) -> str:
    result = subprocess.run([sys.executable, "-c", program + END], cwd=ROOT, capture_output=True, text=True)
    return result.stdout.strip() or result.stderr.strip().splitlines()[-1]


def test_either_import_may_come_first_and_records_each_gradient_once() -> None:
    """Of the same script driver and workers must see the same graph, and workers import this package first."""
    ours, tensorflows = "import parallax_runner\n", "import tensorflow.compat.v1 as tf\n"
    hook = "import parallax_runner.graph.gradients_hook\n"
    orders = (ours + tensorflows, tensorflows + ours, ours + tensorflows + hook)
    found = {captured_in(order + BUILD) for order in orders}
    assert len(found) == 1
    assert found.pop().split()[:4] == ["2", "2", "1", "1"]


KERAS = """
import random
tf.keras.initializers  # Keras is there
before = random.getstate()
graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed({seed})
    for name in ("a", "b"):
        w = tf.get_variable(name, [2, 3], initializer=tf.keras.initializers.VarianceScaling())
        tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w))
assert random.getstate() == before
drawn = [op for op in graph.get_operations() if op.name.endswith("Initializer/Const")]
seeds = {{op.get_attr("value").tensor_content for op in drawn}}
assert len(seeds) == 2, seeds
"""


def test_keras_initializers_draw_the_same_seeds_in_each_process_and_leave_pythons_generator_alone() -> None:
    ours, tensorflows = "import parallax_runner\n", "import tensorflow.compat.v1 as tf\n"
    one, again, other = (
        captured_in(imports + KERAS.format(seed=seed)).split()[-1]
        for imports, seed in ((ours + tensorflows, 1), (tensorflows + ours, 1), (ours + tensorflows, 2))
    )
    assert one == again
    assert one != other


def test_a_graph_built_before_the_import_is_an_error_that_says_so() -> None:
    assert "after `import parallax_runner`" in captured_in("import tensorflow.compat.v1 as tf\n" + BUILD)


def test_importing_costs_no_tensorflow() -> None:
    program = "import parallax_runner, sys; print({'tensorflow', 'hydra', 'numpy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True).strip() == "set()"


def two_train_ops() -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        with tf.variable_scope("marked", partitioner=parallax.get_partitioner(3)):
            table = tf.get_variable("table", [6, 2])
        weights = tf.get_variable("weights", [2])
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [0, 1]) * weights)
        for name, variable in (("first", next(iter(table))), ("second", weights)):
            tf.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[variable], name=name)
        tf.assign_add(tf.get_variable("other", []), 1.0, name="apart")
    return graph


def test_a_step_is_all_that_gradients_update_and_nothing_else() -> None:
    single = capture_script(two_train_ops())
    nodes = {node.name: node for node in single.meta_graph.graph_def.node}
    assert {"^first", "^second"} <= set(nodes[TRAIN_OP].input)
    assert not any("apart" in name for name in nodes[TRAIN_OP].input)
    assert nodes[LOSS].op == "Identity"


def test_get_partitioner_marks_its_own_variables() -> None:
    wanted = {info.name: info.min_partitions for info in classify(capture_script(two_train_ops()))}
    assert wanted == {"marked/table/part_0": 3, "weights": None, "other": None}


def test_a_graph_without_updates_is_refused() -> None:
    graph = tf.Graph()
    with graph.as_default():
        weights = tf.get_variable("weights", [2])
        tf.gradients(tf.reduce_sum(weights * weights), [weights])
    with pytest.raises(CaptureError, match="add a train op"):
        capture_script(graph)


def test_a_loss_is_unknown_where_there_are_several() -> None:
    def losses(count: int, shape: tuple[int, ...] = ()) -> tf.Graph:
        graph = tf.Graph()
        with graph.as_default():
            w = tf.get_variable("w", [2])
            made = [tf.reduce_sum(w * (number + 1.0)) + tf.zeros(shape) for number in range(count)]
            slopes = tf.add_n([tf.gradients(loss, w)[0] for loss in made])
            tf.train.GradientDescentOptimizer(0.1).apply_gradients([(slopes, w)])
        return graph

    one = capture_script(losses(1))
    assert (one.unknown_loss, one.notes) == (None, ())
    for graph, told in (
        (losses(2), r"^the script computes gradients of 2 tensors \(«add:0», «add_1:0»\)\. "),
        (losses(6), r" of 6 tensors \(«add:0», «add_1:0», «add_2:0», «add_3:0» and 2 more\)\. "),
        (losses(1, (3,)), r"^«add:0», whose gradients the script computes, is not a scalar "),
    ):
        single = capture_script(graph)
        assert single.unknown_loss is not None and re.search(told, single.unknown_loss)
        assert single.notes == (f"the loss is unknown: {single.unknown_loss}",)
