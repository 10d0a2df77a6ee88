"""Each rank draws its own numbers, all draw the same initial values, and a resumed run draws anew."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph.seeds import derive_seeds

INITIALIZER = "table/Assign"


def graph_def() -> tf.GraphDef:
    """A variable with a random initial value, two random ops, and one in a function."""

    @tf.function(autograph=False)
    def in_a_function(x: tf.Tensor) -> tf.Tensor:
        return x + tf.random.uniform([4], name="inside")

    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(3)
        table = tf.get_variable("table", [5], initializer=tf.random_uniform_initializer())
        tf.add(tf.random.normal([4], name="first"), table[0], name="use")
        tf.random.normal([4], name="second")
        tf.identity(in_a_function(tf.zeros([4])), name="called")
    return graph.as_graph_def()


def derived(*, seed: int = 1, rank: int = 0, first_step: int = 0) -> tf.GraphDef:
    return derive_seeds(graph_def(), seed=seed, rank=rank, first_step=first_step, initializers=[INITIALIZER])


def seeds(graph: tf.GraphDef) -> dict[str, tuple[int, int]]:
    """By the first part of the op's name."""
    nodes = list(graph.node) + [node for function in graph.library.function for node in function.node_def]
    found = {n.name.split("/")[0]: (n.attr["seed"].i, n.attr["seed2"].i) for n in nodes if "seed2" in n.attr}
    assert set(found) == {"table", "first", "second", "inside"}
    return found


RUNNING = ("first", "second", "inside")


def test_they_are_deterministic() -> None:
    assert seeds(derived()) == seeds(derived())


def test_each_op_has_its_own_and_none_is_left_to_the_clock() -> None:
    found = seeds(derived())
    assert len(set(found.values())) == len(found)
    assert all(first > 0 and second >= 0 for first, second in found.values())


def test_ranks_differ_but_in_initial_values() -> None:
    here, there = seeds(derived(rank=0)), seeds(derived(rank=1))
    assert here["table"] == there["table"]
    assert all(here[name] != there[name] for name in RUNNING)


def test_a_later_start_differs_but_in_initial_values() -> None:
    here, there = seeds(derived(first_step=0)), seeds(derived(first_step=100))
    assert here["table"] == there["table"]
    assert all(here[name] != there[name] for name in RUNNING)


def test_the_runs_seed_changes_all() -> None:
    here, there = seeds(derived(seed=1)), seeds(derived(seed=2))
    assert all(here[name] != there[name] for name in here)


def test_the_graph_that_is_given_stays_as_it_is() -> None:
    given = graph_def()
    before = given.SerializeToString(deterministic=True)
    changed = derive_seeds(given, seed=1, rank=0, first_step=0, initializers=[INITIALIZER])
    assert given.SerializeToString(deterministic=True) == before
    for node in (*changed.node, *(node for function in changed.library.function for node in function.node_def)):
        for attr in ("seed", "seed2"):
            node.attr.pop(attr, None)
    for node in (*given.node, *(node for function in given.library.function for node in function.node_def)):
        for attr in ("seed", "seed2"):
            node.attr.pop(attr, None)
    assert changed == given


def draws(graph: tf.GraphDef) -> dict[str, np.ndarray]:
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(graph, name="")
        session.run(INITIALIZER)
        names = {"table": "table/Read/ReadVariableOp:0", "first": "first:0", "inside": "called:0"}
        return session.run(names)


def test_what_is_drawn() -> None:
    here, again, there = draws(derived()), draws(derived()), draws(derived(rank=1))
    for name in here:
        np.testing.assert_array_equal(here[name], again[name])
    np.testing.assert_array_equal(here["table"], there["table"])
    assert not np.array_equal(here["first"], there["first"])
    assert not np.array_equal(here["inside"], there["inside"])


def test_an_initializer_within_a_function_agrees_on_all_ranks() -> None:
    """An op that an initial value needs may stand in a function that it calls."""

    @tf.function(autograph=False)
    def initial() -> tf.Tensor:
        return tf.random.uniform([5])

    graph = tf.Graph()
    with graph.as_default():
        tf.get_variable("table", initializer=initial())
    made = [
        derive_seeds(graph.as_graph_def(), seed=1, rank=rank, first_step=rank, initializers=[INITIALIZER])
        for rank in (0, 1)
    ]
    assert made[0] == made[1]


def test_ops_of_two_functions_draw_apart() -> None:
    """Their names within the functions are equal."""

    @tf.function(autograph=False)
    def once() -> tf.Tensor:
        return tf.random.uniform([4])

    @tf.function(autograph=False)
    def twice() -> tf.Tensor:
        return tf.random.uniform([4]) * 1.0

    graph = tf.Graph()
    with graph.as_default():
        tf.identity(once(), name="once")
        tf.identity(twice(), name="twice")
    made = derive_seeds(graph.as_graph_def(), seed=1, rank=0, first_step=0, initializers=[])
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(made, name="")
        first, second = session.run(["once:0", "twice:0"])
    assert not np.array_equal(first, second)


def draws_by_a_given_seed(rank: int) -> list[np.ndarray]:
    """What a layer draws as those of Keras do, by a seed that a variable counts on, outside and inside a function; an
    initial value; and what is drawn by a seed that is a list."""

    @tf.function(autograph=False)
    def in_a_function(seed: tf.Tensor) -> tf.Tensor:
        return tf.random.stateless_uniform([4], seed)

    graph = tf.Graph()
    with graph.as_default():
        state = tf.get_variable("state", initializer=tf.constant([5, 0], tf.int32), use_resource=True)
        initial = tf.get_variable(
            "initial", initializer=tf.random.stateless_uniform([4], seed=[1, 2]), use_resource=True
        )
        listed = tf.random.stateless_uniform([4], seed=[3, 4])
        drawn = [tf.random.stateless_uniform([4], state), in_a_function(state), initial, listed]
        drawn = [tf.identity(value, name=f"drawn_{number}") for number, value in enumerate(drawn)]
        tf.group(state.initializer, initial.initializer, name="initialize")
    definition = derive_seeds(graph.as_graph_def(), seed=1, rank=rank, first_step=0, initializers=["initialize"])
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(definition, name="")
        session.run("initialize")
        return session.run([f"drawn_{number}:0" for number in range(4)])


def test_draws_by_a_given_seed_differ_by_rank() -> None:
    first, again, other = draws_by_a_given_seed(0), draws_by_a_given_seed(0), draws_by_a_given_seed(1)
    np.testing.assert_array_equal(first, again)
    assert [bool((here != there).all()) for here, there in zip(first, other, strict=True)] == [True, True, False, True]
    assert (first[0] != first[1]).all()


def draws_of_a_generator(rank: int) -> list[np.ndarray]:
    """What a `tf.random.Generator` draws, outside and inside a function, and its state afterwards."""
    graph = tf.Graph()
    with graph.as_default():
        generator = tf.random.Generator.from_seed(3)
        in_a_function = tf.function(lambda: generator.normal([4]), autograph=False)
        first = tf.identity(generator.uniform([4]), name="drawn_0")
        with tf.control_dependencies([first]):
            second = tf.identity(in_a_function(), name="drawn_1")
        with tf.control_dependencies([second]):
            tf.identity(generator.state.read_value(), name="drawn_2")
        tf.group(generator.state.initializer, name="initialize")
    definition = derive_seeds(graph.as_graph_def(), seed=1, rank=rank, first_step=0, initializers=["initialize"])
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(definition, name="")
        session.run("initialize")
        return session.run([f"drawn_{number}:0" for number in range(3)])


def test_draws_of_a_generator_differ_by_rank_and_its_state_does_not() -> None:
    first, again, other = draws_of_a_generator(0), draws_of_a_generator(0), draws_of_a_generator(1)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert [bool((here != there).all()) for here, there in zip(first[:2], other[:2], strict=True)] == [True, True]
    np.testing.assert_array_equal(first[2], other[2])
