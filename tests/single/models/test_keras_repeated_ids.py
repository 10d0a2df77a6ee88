"""What the installed Keras does with repeated ids in a batch, as docs/repeated-ids.md has it.

Keras applies an optimizer's formula to slices that are not merged. These tests fail when it merges them.
"""

import re
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers

from parallax_runner.data.draws import columns, keys, log_uniform, uniform
from parallax_runner.graph.traced.capture_step import capture_step
from tests.single.small_models import planned

PAGE = Path(__file__).parents[3] / "docs" / "repeated-ids.md"
MENDED = (
    f"Keras {keras.__version__} gives {{}} the same result for repeated ids and for merged ones: move it to the "
    "optimizers that agree in docs/repeated-ids.md and in this file, and take it out of what action=verify says of "
    "plain Keras and repeated ids"
)

ROWS, WIDTH, IDS, STEPS = 1000, 4, 256, 10
IDS_OF_MODEL, LABELS = np.array([1, 1, 4, 5], np.int32), np.array([100.0, -200.0, -100.0, 50.0])
EXAMPLE = (np.array([1, 1, 2]), np.array([[1.0], [2.0], [3.0]]), (3, 1))

AGREE = {
    "SGD": lambda: optimizers.SGD(0.001),
    "SGD with momentum": lambda: optimizers.SGD(0.001, momentum=0.9),
    "SGD with Nesterov momentum": lambda: optimizers.SGD(0.001, momentum=0.9, nesterov=True),
    "SGD with EMA": lambda: optimizers.SGD(0.001, use_ema=True),
    "Lion": lambda: optimizers.Lion(0.01),
    "Adam with gradient accumulation": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "Adagrad with gradient accumulation and `clipnorm=1`": lambda: optimizers.Adagrad(
        0.1, gradient_accumulation_steps=2, clipnorm=1.0
    ),
}
DIFFER = {
    "Adagrad": lambda: optimizers.Adagrad(0.1),
    "Adam": lambda: optimizers.Adam(0.01),
    "AdamW": lambda: optimizers.AdamW(0.01),
    "Nadam": lambda: optimizers.Nadam(0.01),
    "RMSprop": lambda: optimizers.RMSprop(0.01),
    "Adadelta": lambda: optimizers.Adadelta(1.0),
    "Adamax": lambda: optimizers.Adamax(0.01),
    "Ftrl": lambda: optimizers.Ftrl(0.1),
    "Adafactor": lambda: optimizers.Adafactor(0.01),
    "Lamb": lambda: optimizers.Lamb(0.01),
    "SGD with `clipnorm=1`": lambda: optimizers.SGD(0.001, clipnorm=1.0),
    "SGD with `global_clipnorm=1`": lambda: optimizers.SGD(0.001, global_clipnorm=1.0),
    "SGD with `clipvalue=1`": lambda: optimizers.SGD(0.001, clipvalue=1.0),
}
EVERY = AGREE | DIFFER
# The optimizers whose whole training step the default tier captures; the others have "more-" in their tests' names.
CAPTURED = ("SGD with Nesterov momentum", "Adam with gradient accumulation", "Ftrl", "SGD with `global_clipnorm=1`")


def as_keras_has_it(ids, values, shape):
    """The gradient of an embedding: a slice for each id of the batch."""
    return tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant(shape, tf.int64))


def merged(ids, values, shape):
    """A slice for each distinct id: the sum of its slices."""
    distinct, places = np.unique(ids, return_inverse=True)
    sums = np.zeros([len(distinct), *values.shape[1:]])
    np.add.at(sums, places, values)
    return as_keras_has_it(distinct, sums, shape)


def dense(ids, values, shape):
    whole = np.zeros(shape)
    np.add.at(whole, ids, values)
    return tf.constant(whole)


def apply_example(optimizer, gradient):
    """The change of a table of zeros by the three ids of the example, and the first slot; one value a row."""
    table = keras.Variable(np.zeros([3, 1]), dtype="float64")
    optimizer.apply([gradient(*EXAMPLE)], [table])
    slots = [variable.numpy()[:, 0] for variable in optimizer.variables if variable.shape == (3, 1)]
    return table.numpy()[:, 0], *slots


def train(make_optimizer, gradient):
    """The table and its slots after ten steps on ids by Zipf's law; an example pulls its row towards a target."""
    id_key, target_key = keys(1, count=2)
    targets = 2 * uniform(target_key, columns(np.arange(ROWS), WIDTH)) - 1
    table = keras.Variable(np.zeros([ROWS, WIDTH]), dtype="float64")
    optimizer = make_optimizer()
    for step in range(STEPS):
        ids = log_uniform(uniform(id_key, np.arange(step * IDS, (step + 1) * IDS)), ROWS)
        optimizer.apply([gradient(ids, table.numpy()[ids] - targets[ids], table.shape)], [table])
    return [table.numpy(), *(one.numpy() for one in optimizer.variables if one.shape == table.shape)]


def train_with_both_signs(make_optimizer, gradient):
    """The table and its slots after six steps by gradients that are drawn for each slice."""
    draw = np.random.default_rng(0)
    table = keras.Variable(np.zeros([20, WIDTH]), dtype="float64")
    optimizer = make_optimizer()
    for _ in range(6):
        optimizer.apply([gradient(draw.integers(0, 8, 16), draw.normal(size=[16, WIDTH]), table.shape)], [table])
    return [table.numpy(), *(one.numpy() for one in optimizer.variables if one.shape == table.shape)]


def model_of(make_optimizer):
    inputs = keras.Input((), dtype="int32", name="ids")
    rows = keras.layers.Embedding(10, 3, name="table", dtype="float64")(inputs)
    made = keras.Model(inputs, keras.layers.Dense(1, name="out", dtype="float64")(rows))
    made.compile(optimizer=make_optimizer(), loss="mse")
    return made


def updated_model(make_optimizer, *, is_merged):
    """The trained variables of a small model after its first update by a batch that repeats an id."""
    gradient = tf.GradientTape.gradient

    def merging(*args, **kwargs):
        found = gradient(*args, **kwargs)
        return [tf.convert_to_tensor(one) for one in found] if is_merged else found

    keras.utils.set_random_seed(1)
    model = model_of(make_optimizer)
    model.run_eagerly = True
    with mock.patch.object(tf.GradientTape, "gradient", merging):
        for _ in range(model.optimizer.gradient_accumulation_steps or 1):
            model.train_on_batch(IDS_OF_MODEL, LABELS)
    return {variable.path: variable.numpy() for variable in model.trainable_variables}


def largest_change(name, gradient):
    """Of any value of the table, which begins with zeros."""
    return np.abs(train(EVERY[name], gradient)[0]).max()


def difference(found, expected):
    """The largest one of any value, relative to the largest value of its variable; an accumulator may hold zeros."""
    tiny = np.finfo(np.float64).tiny
    return max(np.abs(one - two).max() / max(np.abs(two).max(), tiny) for one, two in zip(found, expected, strict=True))


def factor_too_small(name, slot):
    """The largest one of any value of a slot, where slices are not merged."""
    plain, expected = (train(DIFFER[name], gradient)[slot] for gradient in (as_keras_has_it, merged))
    return (expected[plain > 0] / plain[plain > 0]).max()


def test_adagrad_adds_the_squares_of_single_slices():
    change, accumulator = apply_example(optimizers.Adagrad(0.1), as_keras_has_it)
    assert accumulator == pytest.approx([0.1, 0.1 + 1 + 4, 0.1 + 9]), MENDED.format("Adagrad")
    assert -change == pytest.approx([0, 0.1 * 3 / np.sqrt(5.1), 0.1 * 3 / np.sqrt(9.1)])
    for gradient in (merged, dense):
        change, accumulator = apply_example(optimizers.Adagrad(0.1), gradient)
        assert accumulator == pytest.approx([0.1, 9.1, 9.1])
        assert -change == pytest.approx([0, *[0.1 * 3 / np.sqrt(9.1)] * 2])


def test_adam_takes_the_squares_of_single_slices():
    _, momentum, velocity = apply_example(optimizers.Adam(beta_2=0.9), as_keras_has_it)
    assert momentum == pytest.approx([0, 0.3, 0.3])
    assert velocity == pytest.approx([0, 0.1 * (1 + 4), 0.1 * 9]), MENDED.format("Adam")
    for gradient in (merged, dense):
        _, momentum, velocity = apply_example(optimizers.Adam(beta_2=0.9), gradient)
        assert momentum == pytest.approx([0, 0.3, 0.3])
        assert velocity == pytest.approx([0, 0.9, 0.9])


@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm"])
def test_norms_are_those_of_single_slices(option):
    (change,) = apply_example(optimizers.SGD(1.0, **{option: 1.0}), as_keras_has_it)
    assert -change == pytest.approx(np.array([0, 3, 3]) / np.sqrt(1 + 4 + 9)), MENDED.format(option)
    for gradient in (merged, dense):
        (change,) = apply_example(optimizers.SGD(1.0, **{option: 1.0}), gradient)
        assert -change == pytest.approx(np.array([0, 3, 3]) / np.sqrt(9 + 9))


@pytest.mark.parametrize("name", EVERY)
def test_merged_slices_are_keras_with_a_dense_gradient(name):
    assert difference(train(EVERY[name], merged), train(EVERY[name], dense)) < 1e-14


@pytest.mark.parametrize("name", AGREE)
def test_optimizers_that_agree(name):
    assert difference(train(AGREE[name], as_keras_has_it), train(AGREE[name], merged)) < 1e-13
    both = (train_with_both_signs(AGREE[name], gradient) for gradient in (as_keras_has_it, merged))
    assert difference(*both) < 1e-13


@pytest.mark.parametrize("name", DIFFER)
def test_optimizers_that_differ(name):
    both = (train_with_both_signs(DIFFER[name], gradient) for gradient in (as_keras_has_it, merged))
    assert difference(*both) > 0.01, MENDED.format(name)
    if name != "Adamax":  # the slices of a row have one sign here
        assert difference(train(DIFFER[name], as_keras_has_it), train(DIFFER[name], merged)) > 0.01


def test_adamax_adds_the_absolute_values_of_single_slices():
    ids, values, shape = EXAMPLE
    for gradient, largest in ((as_keras_has_it, [0, 3, 3]), (merged, [0, 1, 3]), (dense, [0, 1, 3])):
        table = keras.Variable(np.zeros([3, 1]), dtype="float64")
        optimizer = optimizers.Adamax(0.01)
        optimizer.apply([gradient(ids, values * [[1], [-1], [1]], shape)], [table])
        (norm,) = (one.numpy()[:, 0] for one in optimizer.variables if one.path.endswith("_norm"))
        assert norm == pytest.approx(largest), MENDED.format("Adamax")


@pytest.mark.parametrize("name", [pytest.param(one, id=one if one in CAPTURED else f"more-{one}") for one in EVERY])
def test_a_plan_names_the_variables_that_differ(name):
    """Those of a Keras model whose first update in plain Keras depends on merging: also dense ones under a norm."""
    plain, expected = (updated_model(EVERY[name], is_merged=is_merged) for is_merged in (False, True))
    differ = {path for path in plain if not np.allclose(plain[path], expected[path], rtol=1e-10, atol=0)}
    single = capture_step(
        lambda: model_of(EVERY[name]),
        {"ids": (IDS_OF_MODEL.shape, "int32"), "y": (LABELS.shape, "float64")},
        seed=1,
        options={"labels": "y"},
    )
    assert set(planned(single, "mpi").differ_unmerged) == differ
    assert bool(differ) == (name in DIFFER)


def rows_of_the_page():
    _, _, table = PAGE.read_text(encoding="utf-8").partition("| optimizer |")
    cells = re.findall(r"^\| (.+?) \| ([\d.]+) \| ([\d.]+) \|", table, re.MULTILINE)
    return {name: (float(as_it_is), float(sums)) for name, as_it_is, sums in cells}


def test_the_page_has_every_optimizer_and_its_numbers():
    rows = rows_of_the_page()
    assert rows.keys() == EVERY.keys()
    for name, numbers in rows.items():
        measured = [largest_change(name, gradient) for gradient in (as_keras_has_it, merged)]
        assert numbers == pytest.approx(measured, rel=0.01), name


def test_the_factors_of_the_page():
    (adam, adagrad) = re.search(
        r"is up to (\d+) times too small,\s+and Adagrad's accumulator is up to (\d+) times too small",
        PAGE.read_text(encoding="utf-8"),
    ).groups()
    assert int(adam) == pytest.approx(factor_too_small("Adam", slot=2), rel=0.01)
    assert int(adagrad) == pytest.approx(factor_too_small("Adagrad", slot=1), rel=0.01)
