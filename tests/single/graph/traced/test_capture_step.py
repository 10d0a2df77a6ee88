"""What is captured of Keras models and training steps: names, first values, one fingerprint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.export.inference import inference_graph
from parallax_runner.graph.seeds import derive_seeds
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced import keras_model
from parallax_runner.verify.reference import Reference
from tests.single.graph.traced.captures import BATCH, FEATURES, LABELS, ROWS, captured, dict_model, model, squares

ROOT = Path(__file__).parents[4]


def first_values(single: SingleDeviceGraph) -> dict[str, np.ndarray]:
    """What the graph's own initializers make."""
    with Reference(single, ranks=1, average_sparse=True) as reference:
        reference.initialize()
        return reference.values()


def kept(make: Any) -> tuple[list[Any], Any]:
    """A list that has what `make` made, once the function beside it was called."""
    made: list[Any] = []

    def making() -> Any:
        made.append(make())
        return made[-1]

    return made, making


def test_variables_have_keras_own_paths() -> None:
    made, making = kept(model)
    single = captured(making)
    expected = [one.path for one in (*made[0].weights, *made[0].optimizer.variables)]
    assert "table/embeddings" in expected
    assert "adam/table_embeddings_momentum" in expected
    assert {variable.name for variable in single.variables} == set(expected)
    assert all(variable.full_name == variable.name and variable.saved for variable in single.variables)


def test_variables_of_tensorflow_have_their_own_names() -> None:
    def make() -> Any:
        with tf.name_scope("inner"):
            weights = tf.Variable(tf.ones([3, 1]), name="weights")
        again = tf.Variable(tf.zeros([1]), name="bias"), tf.Variable(tf.zeros([1]), name="bias")

        def step(batch: dict[str, Any]) -> Any:
            with tf.GradientTape() as tape:
                predicted = batch["x"] @ weights + again[0] * again[1]
                loss = tf.reduce_mean(tf.square(predicted[:, 0] - batch["y"]))
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
            return loss

        return step

    assert {one.name for one in captured(make, {}).variables} == {"inner/weights", "bias", "bias_1"}


SCRIPT = """
import keras
from tests.single.graph.traced.captures import captured, model
from tests.single.graph.traced.test_capture_step import dropping, scaled
for make in (lambda: model(global_clipnorm=0.1, use_ema=True), dropping, scaled):
    keras.utils.clear_session()
    print(captured(make).fingerprint)
"""


def test_one_fingerprint_whatever_the_hash_seed_is() -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT], env=env | {"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True
        )
        for seed in ("1", "2")
    ]
    found = [process.communicate(timeout=600)[0].split() for process in processes]
    assert len(set(found[0])) == 3
    assert found[0] == found[1]
    assert found[0][0] == captured(lambda: model(global_clipnorm=0.1, use_ema=True)).fingerprint


def test_another_model_has_another_fingerprint() -> None:
    assert captured(lambda: model(global_clipnorm=0.1)).fingerprint != captured(model).fingerprint


def _set() -> Any:
    made = model()
    made.get_layer("table").set_weights([np.arange(ROWS * 3.0).reshape(ROWS, 3)])
    made.get_layer("hidden").bias.assign([1.0, 2.0, 3.0, 4.0])
    return made


def _loaded(path: Path) -> Any:
    made = model()
    made.load_weights(path)
    return made


def test_first_values_are_those_of_the_object(tmp_path: Path) -> None:
    path = tmp_path / "there.weights.h5"
    other = model()
    other.get_layer("table").set_weights([np.full((ROWS, 3), 0.25)])
    other.save_weights(path)
    for make in (model, _set, lambda: _loaded(path)):
        made, making = kept(make)
        found = first_values(captured(making))
        for variable in (*made[0].weights, *made[0].optimizer.variables):
            np.testing.assert_array_equal(found[variable.path], variable.numpy(), err_msg=variable.path)
        drawn = make is model
        assert (np.abs(found["table/embeddings"]).max() < 0.06) == drawn
        if make is _set:
            np.testing.assert_array_equal(found["hidden/bias"], [1.0, 2.0, 3.0, 4.0])


def test_a_table_has_no_values_beside_the_session() -> None:
    made, making = kept(lambda: model(rows=5000))
    captured(making)
    table = made[0].get_layer("table").embeddings
    slots = [one for one in made[0].optimizer.variables if "table" in one.path]
    assert len(slots) == 2
    for variable in (table, *slots):
        assert not variable._value.is_initialized(), variable.path


def test_set_values_of_a_table_come_from_the_object_and_are_not_in_the_graph() -> None:
    def make() -> Any:
        made = model(rows=20000)
        made.get_layer("table").set_weights([np.full((20000, 3), 0.5)])
        return made

    single = captured(make)
    assert single.meta_graph.ByteSize() < 20000 * 3 * 4
    np.testing.assert_array_equal(first_values(single)["table/embeddings"], np.full((20000, 3), 0.5))


def test_features_that_are_no_inputs_take_the_place_of_none() -> None:
    others = {"a": ((BATCH,), "int32"), "k": ((BATCH, 3), "float32")}
    single = captured(dict_model, features={**FEATURES, **others})
    assert set(inference_graph(single).inputs) == {"ids", "x"}


def test_an_optional_input_may_be_missing() -> None:
    expected = {"ids": keras.Input((), name="ids"), "extra": keras.Input((), name="extra", optional=True)}
    assert keras_model._expected_inputs(expected, {"ids": 1, "other": 2}) == {"ids": 1, "extra": None}


def dropping() -> Any:
    """A model whose every step draws."""
    ids, x = keras.Input((), dtype="int32", name="ids"), keras.Input((3,), name="x")
    rows = keras.layers.Dropout(0.5)(keras.layers.Embedding(ROWS, 3, name="table")(ids) * x)
    made = keras.Model([ids, x], keras.layers.Dense(1, name="out")(rows))
    made.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    return made


def scaled() -> Any:
    """A model with updates in branches of its optimizer."""
    made = model()
    inner = keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)
    made.compile(optimizer=keras.optimizers.LossScaleOptimizer(inner), loss="mse")
    return made


def test_draws_differ_by_rank_and_by_step() -> None:
    """No weight changes, and all batches are the same, so losses differ only by what is dropped."""

    def make() -> Any:
        made = dropping()
        made.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
        return made

    single = captured(make)
    initializers = [variable.initializer for variable in single.variables]
    draw = np.random.default_rng(3)
    batch = {"ids": draw.integers(0, ROWS, BATCH), "x": draw.normal(size=(BATCH, 3)), "y": draw.normal(size=BATCH)}
    with Reference(
        single,
        ranks=2,
        average_sparse=True,
        seeds=lambda graph, rank: derive_seeds(graph, seed=1, rank=rank, first_step=0, initializers=initializers),
    ) as reference:
        reference.initialize()
        losses = [float(loss) for _ in range(3) for loss in reference.step([batch, batch])]
    assert len(set(losses)) == 6, losses


def test_averages_are_slots() -> None:
    (table,) = [one for one in classify(captured(lambda: model(use_ema=True))) if one.name == "table/embeddings"]
    assert sorted(table.slots) == [
        "adam/table_embeddings_average",
        "adam/table_embeddings_momentum",
        "adam/table_embeddings_velocity",
    ]


def compiled_within() -> Any:
    """A step whose compiled function calls another compiled function."""
    weights = tf.Variable(tf.ones([3, 1]), name="weights")
    inner = tf.function(lambda batch: squares(weights, batch), jit_compile=True)
    outer = tf.function(lambda batch: inner(batch) + 1.0, jit_compile=True)

    @tf.function(jit_compile=True)
    def step(batch: dict[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            loss = outer(batch)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    return step


def compiled_by_keras() -> Any:
    """A model whose step `fit` would compile."""
    made = model()
    made.compile(optimizer="adam", loss="mse", jit_compile=True)
    return made


@pytest.mark.parametrize(("make", "options"), [(compiled_within, {}), (compiled_by_keras, LABELS)])
def test_functions_are_inlined_and_nothing_is_compiled(make: Any, options: dict[str, Any]) -> None:
    definition = captured(make, options).meta_graph.graph_def
    assert not [node.name for node in definition.node if "PartitionedCall" in node.op]
    assert not definition.library.function
    assert "Xla" not in str(definition)


def test_a_resumed_run_goes_on_with_the_draws_that_come_next() -> None:
    single = captured(dropping)
    initializers = [variable.initializer for variable in single.variables]
    draw = np.random.default_rng(3)
    steps = [
        [
            {"ids": draw.integers(0, ROWS, BATCH), "x": draw.normal(size=(BATCH, 3)), "y": draw.normal(size=BATCH)}
            for _ in range(2)
        ]
        for _ in range(4)
    ]

    def after(first: int, last: int, begin: dict[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        """All variables when two ranks have done these steps in a session of their own."""
        with Reference(
            single,
            ranks=2,
            average_sparse=True,
            seeds=lambda graph, rank: derive_seeds(
                graph, seed=1, rank=rank, first_step=first, initializers=initializers
            ),
        ) as reference:
            reference.initialize()
            if begin is not None:
                reference.load(begin)
            for batches in steps[first:last]:
                reference.step(batches)
            return reference.values()

    whole = after(0, 4, None)
    resumed = after(2, 4, after(0, 2, None))
    assert whole.keys() == resumed.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)
    assert any(name.endswith("seed_generator_state") for name in whole)


LATE = """
import sys
from parallax_runner.graph.traced import keras_model
from parallax_runner.graph.traced.capture_step import capture_step

def make():
    import keras
    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="out")])
    made.compile("adam", "mse")
    has_values.append(made.layers[0].kernel.value.is_initialized())
    return made

has_values = []
assert "keras" not in sys.modules
single = capture_step(make, {"x": ((4, 3), "float32"), "y": ((4, 1), "float32")}, seed=7, options={"labels": "y"})
# The first call, which imports Keras, makes no real table either.
assert [bool(one) for one in has_values] == [False, False], has_values
print(*sorted(variable.name for variable in single.variables))
"""


def test_a_function_that_imports_keras_itself_gives_keras_own_paths() -> None:
    program = "from parallax_runner.process.tensorflow_import import import_tensorflow\nimport_tensorflow()\n" + LATE
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    wanted = {"sequential/out/kernel", "sequential/out/bias", "adam/iteration", "adam/sequential_out_kernel_momentum"}
    assert wanted <= set(result.stdout.split())


def looking_up() -> Any:
    """A step whose lookup captures its table without a name of its own."""
    table = tf.Variable(tf.ones([ROWS, 3]), name="table")

    def step(batch: dict[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.embedding_lookup(table, batch["ids"]) * batch["x"])
        table.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, table)))
        return loss

    return step


def test_the_fingerprint_does_not_depend_on_what_the_process_did_before() -> None:
    first = captured(looking_up, {})
    kept = [tf.constant(float(number)) for number in range(10)]  # TensorFlow counts the tensors of a process
    assert len(kept) == 10
    assert captured(looking_up, {}).fingerprint == first.fingerprint


def test_an_optimizer_that_is_built_in_the_step_has_the_names_of_keras() -> None:
    def make() -> Any:
        weights = tf.Variable(tf.ones([3]), name="weights")
        optimizer = keras.optimizers.Nadam(0.01)

        def step(given: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.reduce_sum(given["x"] * weights, axis=1) - given["y"]))
            optimizer.apply(tape.gradient(loss, [weights]), [weights])
            return loss

        return step

    names = {variable.name for variable in captured(make, {}).variables}
    assert {"weights", "nadam/variable", "nadam/weights_0_momentum", "nadam/iteration"} <= names
