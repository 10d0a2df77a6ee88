"""A graph of reference variables and its conversion, run side by side in plain sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.framework import variable_pb2
from tensorflow.python.framework import op_def_registry

from parallax_runner.errors import CaptureError
from parallax_runner.graph import edit, references

ROWS, WIDTH, BATCH, STEPS = 30, 4, 6, 4

OPTIMIZERS: dict[str, Callable[[tf.Tensor], tf.train.Optimizer]] = {
    "gradient_descent": lambda step: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda step: tf.train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda step: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adagrad": lambda step: tf.train.AdagradOptimizer(0.1),
    "adam": lambda step: tf.train.AdamOptimizer(0.1),
    "rmsprop": lambda step: tf.train.RMSPropOptimizer(0.1, momentum=0.5),
    "centered_rmsprop": lambda step: tf.train.RMSPropOptimizer(0.1, momentum=0.5, centered=True),
    "ftrl": lambda step: tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
    "ftrl_v2": lambda step: tf.train.FtrlOptimizer(0.1, l2_shrinkage_regularization_strength=0.01),
    "adadelta": lambda step: tf.train.AdadeltaOptimizer(1.0),
    "adagrad_da": lambda step: tf.train.AdagradDAOptimizer(0.1, step),
    "proximal_gradient_descent": lambda step: tf.train.ProximalGradientDescentOptimizer(
        0.1, l1_regularization_strength=0.01
    ),
    "proximal_adagrad": lambda step: tf.train.ProximalAdagradOptimizer(0.1, l2_regularization_strength=0.01),
}


@pytest.fixture(autouse=True)
def reference_mode() -> Iterator[None]:
    """What `disable_v2_behavior` does to variables and control flow, undone afterwards."""
    resources, control_flow_v2 = tf.resource_variables_enabled(), tf.control_flow_v2_enabled()
    tf.disable_resource_variables()
    tf.disable_control_flow_v2()
    yield
    if resources:
        tf.enable_resource_variables()
    if control_flow_v2:
        tf.enable_control_flow_v2()


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(7)
        yield graph


def convert(graph: tf.Graph) -> tuple[tf.MetaGraphDef, tf.MetaGraphDef]:
    """The graph before and after, checked for what holds of every conversion."""
    with graph.as_default():
        before = tf.train.export_meta_graph()
    copy = before.SerializeToString(deterministic=True)
    after = references.to_resources(before)
    assert before.SerializeToString(deterministic=True) == copy
    assert any(node.op == "VariableV2" for node in before.graph_def.node)
    nodes = {node.name: node for node in after.graph_def.node}
    assert len(nodes) == len(after.graph_def.node)
    for node in before.graph_def.node:
        assert node.name in nodes
        assert nodes[node.name].device == node.device
        assert nodes[node.name].attr["_class"] == node.attr["_class"]
        control = {name for name in node.input if name.startswith("^")}
        assert control <= set(nodes[node.name].input)
        if node.op == "VariableV2":
            assert nodes[node.name].op == "VarHandleOp"
            assert nodes[node.name].attr["shared_name"].s == node.name.encode()
    for node in nodes.values():
        definition = op_def_registry.get(node.op)
        assert not any(argument.is_ref for argument in (*definition.input_arg, *definition.output_arg)), node.name
    assert references.to_resources(after) is after
    return before, after


def load(meta_graph: tf.MetaGraphDef) -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        tf.train.import_meta_graph(meta_graph)  # Collections too: whatever they name must exist.
    return graph


def session(graph: tf.Graph) -> tf.Session:
    return tf.Session(
        graph=graph, config=tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    )


def run(meta_graph: tf.MetaGraphDef, *steps: list[str], feed: dict[str, object] | None = None) -> list[list[object]]:
    """What each step fetches, one session for all; the op `init` is run first."""
    with session(load(meta_graph)) as sess:
        sess.run("init")
        return [sess.run(fetches, feed) for fetches in steps]


def same(graph: tf.Graph, *steps: list[str | tf.Tensor | tf.Operation], feed: dict[str, object] | None = None) -> list:
    """Runs the graph before and after conversion: equal to the bit. Gives what was fetched."""
    with graph.as_default():
        tf.global_variables_initializer()
    before, after = convert(graph)
    names = [[getattr(fetch, "name", fetch) for fetch in fetches] for fetches in steps]
    expected, actual = run(before, *names, feed=feed), run(after, *names, feed=feed)
    for want, got in zip(expected, actual, strict=True):
        for one, other in zip(want, got, strict=True):
            np.testing.assert_array_equal(one, other)
    return actual


def lookup_model(optimizer: str) -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(7)
        ids = tf.placeholder(tf.int64, (BATCH,), name="ids")
        labels = tf.placeholder(tf.float32, (BATCH,), name="labels")
        table = tf.get_variable("table", (ROWS, WIDTH))
        kernel = tf.get_variable("dense/kernel", (WIDTH, 1))
        bias = tf.get_variable("dense/bias", (1,), initializer=tf.zeros_initializer())
        predicted = tf.squeeze(tf.nn.embedding_lookup(table, ids) @ kernel + bias, axis=1)
        loss = tf.reduce_mean(tf.square(predicted - labels), name="loss")
        step = tf.train.get_or_create_global_step()
        OPTIMIZERS[optimizer](step).minimize(loss, global_step=step, name="train")
        tf.global_variables_initializer()
        tf.train.Saver(name="save")
    return graph


def batches() -> Iterator[dict[str, np.ndarray]]:
    random = np.random.default_rng(3)
    for _ in range(STEPS):
        yield {"ids:0": random.integers(0, ROWS // 3, BATCH), "labels:0": random.normal(size=BATCH)}


def train(meta_graph: tf.MetaGraphDef, prefix: Path) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses, and what the graph's own Saver wrote after a restart from its own checkpoint half-way."""
    graph = load(meta_graph)
    losses = []
    with session(graph) as sess:
        sess.run("init")
        data = list(batches())
        for batch in data[: STEPS // 2]:
            losses.append(sess.run(["loss:0", "train"], batch)[0])
        sess.run("save/control_dependency:0", {"save/Const:0": f"{prefix}-middle"})
    with session(graph) as sess:
        sess.run("save/restore_all", {"save/Const:0": f"{prefix}-middle"})
        for batch in data[STEPS // 2 :]:
            losses.append(sess.run(["loss:0", "train"], batch)[0])
        sess.run("save/control_dependency:0", {"save/Const:0": f"{prefix}-end"})
    reader = tf.train.load_checkpoint(f"{prefix}-end")
    return losses, {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_is_the_same(optimizer: str, tmp_path: Path) -> None:
    before, after = convert(lookup_model(optimizer))
    losses, values = train(before, tmp_path / "before")
    new_losses, new_values = train(after, tmp_path / "after")
    assert len(set(losses)) == STEPS
    assert losses == new_losses
    assert values.keys() == new_values.keys() >= {"table", "dense/kernel", "dense/bias", "global_step"}
    for key, value in values.items():
        np.testing.assert_array_equal(value, new_values[key], err_msg=key)


@pytest.mark.parametrize("optimizer", ["gradient_descent", "adagrad"])
def test_training_never_reads_the_whole_table(optimizer: str) -> None:
    graph = load(convert(lookup_model(optimizer))[1])
    handle = graph.get_operation_by_name("table")
    starts = [graph.get_operation_by_name(name) for name in ("loss", "train")]
    users = {op.type for op in edit.ancestors(starts) if handle.outputs[0] in op.inputs}
    update = {"gradient_descent": "ResourceScatterSub", "adagrad": "ResourceSparseApplyAdagrad"}[optimizer]
    assert users == {"ResourceGather", update}


@pytest.mark.parametrize("axis", [0, 1])
def test_gather_by_axis(graph: tf.Graph, axis: int) -> None:
    table = tf.get_variable("table", (3, 3), initializer=tf.random_normal_initializer())
    rows = tf.gather(table, [0, 2], axis=axis)
    ops = {node.name: node.op for node in convert(graph)[1].graph_def.node}
    assert ops[rows.op.name] == ("GatherV2" if axis else "ResourceGather")
    same(graph, [rows, tf.gather_nd(table, [[0, 1]]), tf.raw_ops.Gather(params=table, indices=[1])])


def test_lookups_in_branches_and_loops_do_not_read_the_table(graph: tf.Graph) -> None:
    table = tf.get_variable("table", (5, 2), initializer=tf.random_normal_initializer())
    flag = tf.placeholder_with_default(True, ())
    branch = tf.cond(flag, lambda: tf.gather(table, [1]), lambda: tf.gather(table, [2]))
    _, total = tf.while_loop(
        lambda i, _: i < 3, lambda i, s: (i + 1, s + tf.gather(table, i)), [0, tf.zeros((2,))], name="loop"
    )
    same(graph, [branch, total])
    imported = load(convert(graph)[1])
    starts = [imported.as_graph_element(tensor.name).op for tensor in (branch, total)]
    types = [op.type for op in edit.ancestors(starts)]
    assert types.count("ResourceGather") == 3
    assert "ReadVariableOp" not in types


def test_outputs_of_updates_are_read_after_the_update(graph: tf.Graph) -> None:
    variable = tf.get_variable("variable", (), initializer=tf.ones_initializer())
    first = tf.assign_add(variable, 2.0)
    second = tf.assign(variable, first * 10.0)
    chained = tf.assign_sub(second, 1.0)
    (value,) = same(graph, [chained * 1.0])[0]
    assert value == 29.0
    assert same(graph, [tf.identity(tf.assign_add(tf.assign(variable, 5.0), 1.0))]) == [[6.0]]


def test_an_alias_is_read_after_the_updates_its_consumer_waits_for(graph: tf.Graph) -> None:
    variable = tf.get_variable("variable", (2,), initializer=tf.ones_initializer())
    with tf.control_dependencies([tf.assign_add(variable, [1.0, 2.0])]):
        plain = variable * 10.0  # The consumer of variable/read, itself without an edge to the update.
        identity = tf.identity(variable)
        reference = tf.multiply(variable._ref(), 10.0)
        with tf.control_dependencies([tf.assign_add(variable, [1.0, 1.0])]):
            later = tf.identity(identity)
    by_data = variable + 0.0 * tf.assign(variable, [7.0, 8.0])
    assert [list(value) for value in same(graph, [plain, reference])[0]] == [[20.0, 30.0], [20.0, 30.0]]
    assert list(same(graph, [identity])[0][0]) == [2.0, 3.0]
    assert list(same(graph, [later])[0][0]) == [3.0, 4.0]
    assert list(same(graph, [by_data])[0][0]) == [7.0, 8.0]


def test_an_alias_inside_a_loop_sees_the_updates_of_the_loop(graph: tf.Graph) -> None:
    variable = tf.get_variable("variable", (), initializer=tf.ones_initializer())

    def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.control_dependencies([tf.assign_add(variable, total)]):
            return i + 1, variable * 2.0

    _, total = tf.while_loop(lambda i, _: i < 3, body, [0, 1.0])
    assert same(graph, [total])[0][0] == 36.0


@pytest.mark.parametrize("flag", [True, False])
def test_branches_that_assign(graph: tf.Graph, flag: bool) -> None:
    variable = tf.get_variable("variable", (), initializer=tf.ones_initializer())
    other = tf.get_variable("other", (), initializer=tf.zeros_initializer())
    chosen = tf.placeholder(tf.bool, (), name="chosen")
    both = tf.cond(chosen, lambda: tf.assign(variable, 3.0), lambda: tf.assign_add(other, 4.0))
    one = tf.cond(chosen, lambda: tf.assign_add(variable, 1.0), lambda: tf.constant(-1.0))
    nested = tf.cond(chosen, lambda: tf.cond(both > 2.0, lambda: both, lambda: -both), lambda: both * 2.0)
    read = tf.cond(chosen, lambda: variable.read_value(), lambda: other + 1.0)
    with tf.control_dependencies([nested]):
        end = [tf.identity(variable), tf.identity(other)]
    same(graph, [both], [one], [read], [nested, *end], feed={"chosen:0": flag})


def test_loops_that_read_and_assign(graph: tf.Graph) -> None:
    variable = tf.get_variable("variable", (), initializer=tf.ones_initializer())
    _, read = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x * (variable.read_value() + 1.0)), [0, 1.0])
    assigned = tf.while_loop(lambda x: x < 20.0, lambda x: tf.assign(variable, x * 2.0), [variable])
    assert same(graph, [read])[0][0] == 8.0
    assert same(graph, [assigned])[0][0] == 32.0


def test_gradients_through_a_loop(graph: tf.Graph) -> None:
    variable = tf.get_variable("variable", (), initializer=tf.constant_initializer(1.5))
    _, power = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x * variable), [0, 1.0])
    train = tf.train.GradientDescentOptimizer(0.01).minimize(power)
    with tf.control_dependencies([train]):
        after = variable.read_value()
    same(graph, [power], [train], [after])


def test_scatters(graph: tf.Graph) -> None:
    steps = []
    for name in ("add", "sub", "mul", "div", "min", "max", "update"):
        variable = tf.get_variable(name, (4, 2), initializer=tf.random_uniform_initializer(1.0, 2.0))
        steps.append([getattr(tf, f"scatter_{name}")(variable, [1, 3], [[1.5, 0.5], [3.0, 1.0]]) + 0.0])
    for name in ("add", "sub", "update"):
        variable = tf.get_variable(f"nd_{name}", (4,), initializer=tf.ones_initializer())
        steps.append([getattr(tf, f"scatter_nd_{name}")(variable, [[1], [2]], [1.5, 0.5]) + 0.0])
    variable = tf.get_variable("sliced", (4,), initializer=tf.ones_initializer())
    steps.append([variable[1:3].assign([5.0, 6.0]) + 0.0])
    counter = tf.get_variable("counter", (), tf.int32, initializer=tf.zeros_initializer())
    steps.append([counter.count_up_to(5)])
    same(graph, *steps, *steps)


def test_moving_averages_and_batch_norm(graph: tf.Graph, tmp_path: Path) -> None:
    inputs = tf.placeholder(tf.float32, (BATCH, WIDTH), name="inputs")
    kernel = tf.get_variable("kernel", (WIDTH, 1))
    mean = tf.get_variable("mean", (1,), trainable=False, initializer=tf.zeros_initializer())
    hidden = inputs @ kernel
    batch_mean = tf.reduce_mean(hidden, axis=0)
    update = tf.assign_sub(mean, (mean - batch_mean) * 0.1)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    loss = tf.reduce_mean(tf.square(hidden - batch_mean - 1.0) + tf.square(mean))
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    average = tf.train.ExponentialMovingAverage(0.5)
    with tf.control_dependencies([train]):
        averaged = average.apply([kernel])
    shadow = average.average(kernel)
    feed = {"inputs:0": np.random.default_rng(0).normal(size=(BATCH, WIDTH))}
    reads = [tensor.value() for tensor in (kernel, mean, shadow)]
    same(graph, [averaged], reads, [loss], [averaged], reads, feed=feed)

    after = convert(graph)[1]
    assert list(after.collection_def[tf.GraphKeys.UPDATE_OPS].node_list.value) == ["AssignSub"]
    kept = after.collection_def[tf.GraphKeys.MOVING_AVERAGE_VARIABLES].bytes_list.value
    assert [variable_pb2.VariableDef.FromString(proto).variable_name for proto in kept] == ["kernel:0"]


def test_collections_describe_resource_variables(graph: tf.Graph) -> None:
    variable = tf.get_variable("variable", (2,))
    tf.get_variable("local", (2,), collections=[tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.MODEL_VARIABLES])
    resource = tf.get_variable("resource", (2,), use_resource=True)
    imported = load(convert(graph)[1])
    variables = imported.get_collection("variables")
    assert [item.name for item in variables] == [variable.name, resource.name]
    for key in ("variables", "trainable_variables", "local_variables", "model_variables"):
        assert {type(item).__name__ for item in imported.get_collection(key)} == {"ResourceVariable"}, key
    with session(imported) as sess:
        sess.run([item.initializer for item in variables])
        assert sess.run(variables)[0].shape == (2,)


def test_partitioned_variables_keep_their_slices(graph: tf.Graph, tmp_path: Path) -> None:
    with tf.variable_scope("scope", partitioner=tf.fixed_size_partitioner(3)):
        table = tf.get_variable("table", (10, 2))
    looked_up = tf.nn.embedding_lookup(table, [0, 4, 9, 4])
    train = tf.train.AdagradOptimizer(0.1).minimize(tf.reduce_mean(looked_up**2))
    tf.train.Saver(name="save")
    same(graph, [looked_up], [train], [looked_up])
    imported = load(convert(graph)[1])
    pieces = imported.get_collection("trainable_variables")
    slices = [(piece._save_slice_info.full_name, piece._save_slice_info.var_offset[0]) for piece in pieces]
    assert slices == [("scope/table", 0), ("scope/table", 4), ("scope/table", 7)]
    with session(imported) as sess:
        sess.run("init")
        sess.run("save/control_dependency:0", {"save/Const:0": str(tmp_path / "model")})
    shapes = tf.train.load_checkpoint(str(tmp_path / "model")).get_variable_to_shape_map()
    assert shapes == {"scope/table": [10, 2], "scope/table/Adagrad": [10, 2]}


def test_initial_values_from_other_variables(graph: tf.Graph) -> None:
    first = tf.get_variable("first", (3,))
    second = tf.Variable(first.initialized_value() * 2.0, name="second")
    third = tf.Variable(lambda: second.initialized_value() + 1.0, name="third")
    missing = tf.report_uninitialized_variables()
    same(graph, [first.value(), second.value(), third.value(), missing, tf.is_variable_initialized(first)])


def test_shapes_and_dtypes(graph: tf.Graph) -> None:
    number = tf.get_variable("number", (2, 3), tf.int64, initializer=tf.ones_initializer())
    text = tf.get_variable("text", (), tf.string, initializer=tf.constant_initializer("one"))
    flag = tf.get_variable("flag", (), tf.bool, initializer=tf.constant_initializer(True))
    shape = tf.raw_ops.Shape(input=number)
    same(
        graph, [shape, tf.raw_ops.Size(input=number), tf.strings.join([text.assign("two"), "!"]), tf.logical_not(flag)]
    )
    assert {node.name: node.op for node in convert(graph)[1].graph_def.node}[shape.op.name] == "VariableShape"


def test_conversion_is_deterministic() -> None:
    graphs = [convert(lookup_model("adam"))[1].graph_def.SerializeToString(deterministic=True) for _ in range(2)]
    assert graphs[0] == graphs[1]


def test_a_graph_without_references_is_returned_as_it_is(graph: tf.Graph) -> None:
    variable = tf.get_variable("variable", (2,), use_resource=True)
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(variable))
    meta_graph = tf.train.export_meta_graph()
    assert references.to_resources(meta_graph) is meta_graph


def test_references_that_are_not_variables_stay(graph: tf.Graph) -> None:
    variable = tf.get_variable("variable", (), initializer=tf.ones_initializer())
    temporary = tf.raw_ops.TemporaryVariable(shape=(), dtype=tf.float32, var_name="temporary")
    value = tf.raw_ops.DestroyTemporaryVariable(ref=tf.assign(temporary, variable + 1.0), var_name="temporary")
    tf.global_variables_initializer()
    before = tf.train.export_meta_graph()
    assert run(references.to_resources(before), [value.name]) == [[2.0]]


def test_an_op_without_a_counterpart_is_named(graph: tf.Graph) -> None:
    variables = [tf.get_variable(f"variable_{i}", ()) for i in range(2)]
    tf.raw_ops.RefSelect(index=0, inputs=[variable._ref() for variable in variables], name="choice")
    with pytest.raises(CaptureError, match="«choice» \\(RefSelect\\)"):
        convert(graph)


def test_an_update_of_whichever_variable_is_named(graph: tf.Graph) -> None:
    variables = [tf.get_variable(f"variable_{i}", ()) for i in range(2)]
    chosen = tf.cond(
        tf.constant(True), lambda: tf.assign(variables[0], 1.0), lambda: tf.assign(variables[1], 1.0), name="which"
    )
    tf.assign(chosen, 2.0, name="update")
    with pytest.raises(CaptureError, match="«update» \\(Assign\\)"):
        convert(graph)


def test_a_shape_that_is_not_known_is_refused(graph: tf.Graph) -> None:
    tf.Variable(tf.placeholder_with_default([1.0], (None,)), validate_shape=False, name="free")
    with pytest.raises(CaptureError, match="«free» has shape"):
        convert(graph)
