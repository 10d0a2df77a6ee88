"""Which optimizers update only touched rows, and whether the result is that of plain Keras with dense gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.graph.traced import row_probe
from parallax_runner.graph.traced.branches import StepGraph
from tests.single.graph.traced.own_optimizers import DECAY, OWN, DecaysInBranchLater
from tests.single.graph.traced.test_row_updates import TABLE, VALUES, captured, rows_written, table_model
from tests.single.rewrite.one_device import graph_of

optimizers = keras.optimizers
STEPS = 3


def answers(optimizer: Any) -> tuple[bool, bool]:
    """Returns whether the optimizer keeps untouched rows of a table, and whether it works by row."""
    table = keras.Variable(np.ones((7, 3)), dtype="float64", name="table")
    optimizer.build([table])
    with StepGraph("step").as_default():
        rate = optimizer.learning_rate
        keeps = row_probe.keeps_untouched_rows(optimizer, table, rate)
        return keeps, row_probe.works_by_row(optimizer, table, rate)


# Keras' own optimizers. A new version of Keras may add some.
KERAS: dict[Callable[..., Any], tuple[bool, bool]] = {
    optimizers.Adadelta: (False, True),
    optimizers.Adafactor: (False, False),
    optimizers.Adagrad: (True, True),
    optimizers.Adam: (False, True),
    optimizers.AdamW: (False, True),
    optimizers.Adamax: (False, True),
    optimizers.Ftrl: (False, True),
    optimizers.Lamb: (False, False),
    optimizers.Lion: (False, True),
    optimizers.Muon: (False, False),
    optimizers.Nadam: (False, True),
    optimizers.RMSprop: (False, True),
    optimizers.SGD: (True, True),
    optimizers.ScheduleFreeAdamW: (False, True),
}
WRAPPERS = {optimizers.Optimizer, optimizers.LossScaleOptimizer, optimizers.MultiOptimizer}


def test_every_optimizer_of_keras_is_listed() -> None:
    every = {one for one in vars(optimizers).values() if isinstance(one, type)}
    assert {one for one in every if issubclass(one, optimizers.Optimizer)} - WRAPPERS == set(KERAS)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        *KERAS.items(),
        (lambda: optimizers.SGD(momentum=0.9, nesterov=True), (False, True)),
        (lambda: optimizers.Adam(amsgrad=True), (False, True)),
        (lambda: optimizers.RMSprop(momentum=0.5, centered=True), (False, True)),
        (lambda: optimizers.Adagrad(optimizers.schedules.CosineDecay(0.05, 20, warmup_steps=3)), (True, True)),
        # Every row becomes NaN with a dense gradient: zero divided by zero.
        (lambda: optimizers.Adagrad(epsilon=0.0, initial_accumulator_value=0.0), (False, True)),
    ],
)
def test_optimizers_of_keras(made: Callable[[], Any], expected: tuple[bool, bool]) -> None:
    assert answers(made()) == expected


class OneSlot(optimizers.Optimizer):
    """Has the slot `m`. A formula of (gradient, variable, m, iterations) returns what the variable and `m` become."""

    def __init__(self, formula: Callable[..., tuple[Any, Any]]) -> None:
        super().__init__(learning_rate=0.1)
        self.formula = formula

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.m = self.add_optimizer_variables(variables, "m")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        m = self.m[self._get_variable_index(variable)]
        count = keras.ops.cast(self.iterations, "float64")
        for target, value in zip((variable, m), self.formula(gradient, variable * 1.0, m * 1.0, count), strict=True):
            self.assign(target, value)


ops = keras.ops


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        pytest.param(lambda g, w, m, _: (w - 0.1 * g, m + g * g), (True, True), id="sums"),
        pytest.param(lambda g, w, m, _: (w - 0.1 * g / ops.sqrt(m + 1), m), (True, True), id="quotient"),
        pytest.param(lambda g, w, m, _: (w - ops.clip(g, -1, 1), m), (True, True), id="clipped"),
        pytest.param(lambda g, w, m, _: (w - ops.clip(g, 0.1, 1), m), (False, True), id="clipped-away-from-zero"),
        pytest.param(lambda g, w, m, _: (w - g * ops.norm(w, axis=-1, keepdims=True), m), (True, True), id="row-norm"),
        pytest.param(lambda g, w, m, _: (w - g * ops.norm(w), m), (False, False), id="norm"),
        pytest.param(lambda g, w, m, _: (w - g * ops.sum(w, axis=0), m), (False, False), id="column-sum"),
        pytest.param(lambda g, w, m, _: (w - g * ops.sum(w, axis=-1), m), (False, False), id="misplaced-row-sum"),
        pytest.param(lambda g, w, m, _: (w - ops.flip(g, axis=0), m), (False, False), id="flipped"),
        pytest.param(lambda g, w, m, _: (w - g / ops.cast(ops.shape(g)[0], "float64"), m), (False, False), id="count"),
        pytest.param(lambda g, w, m, t: (w - g * t, m), (True, True), id="times-iterations"),
        pytest.param(lambda g, w, m, t: (w - g, ops.where(t > 1e9, m * 0.5, m)), (False, True), id="one-side"),
        pytest.param(lambda g, w, m, t: (ops.where(t > 9, w - g, w + g), m), (True, True), id="both-sides"),
        pytest.param(lambda g, w, m, _: (w - g, ops.where(g != 0, m * 0.5, m)), (True, True), id="touched"),
        pytest.param(lambda g, w, m, _: (w - g, ops.where(g == 0, m * 0.5, m)), (False, True), id="untouched"),
        pytest.param(lambda g, w, m, _: (w - g - 1e-300 * w, m), (False, True), id="too-small-to-see"),
        pytest.param(lambda g, w, m, t: (w - g, m + ops.exp(-t) * 0.1), (False, True), id="adds"),
        pytest.param(lambda g, w, m, _: (m - g, w), (False, True), id="swapped"),
        pytest.param(lambda g, w, m, _: (w - g, m * tf.random.uniform([])), (False, False), id="random"),
    ],
)
def test_formulas(formula: Callable[..., tuple[Any, Any]], expected: tuple[bool, bool]) -> None:
    assert answers(OneSlot(formula)) == expected


def test_a_trial_leaves_no_tensors_behind() -> None:
    made = OneSlot(lambda g, w, m, _: (w - g, m))

    def noting(gradient: Any, *rest: Any) -> tuple[Any, Any]:
        made.last = gradient
        return made.plain(gradient, *rest)

    made.plain, made.formula = made.formula, noting
    assert answers(made) == (True, True)
    assert not hasattr(made, "last")


@pytest.mark.parametrize("name", ["reads_whole_table", "writes_another", "writes_through_closure", "needs_its_shape"])
def test_a_formula_that_looks_beyond_its_rows_does_not_work_by_row(name: str) -> None:
    _, made = OWN[name]
    assert answers(made()) == (False, False)


@pytest.mark.parametrize("name", OWN)
def test_own_optimizers_are_those_of_plain_keras_with_dense_gradients(name: str) -> None:
    written, made = OWN[name]
    single = captured(made)
    assert rows_written(single) == written
    device = graph_of(single, "local")
    device.initialize()
    model = table_model(made)
    model.set_weights([device.variables()[variable.path] for variable in model.weights])
    for _ in range(STEPS):
        device.step([VALUES])
        update_with_dense_gradients(model)
    for variable in model.weights:
        np.testing.assert_allclose(device.variables()[variable.path], variable.numpy(), rtol=1e-12, atol=1e-14)


def update_with_dense_gradients(model: Any) -> None:
    with tf.GradientTape() as tape:
        loss = model.compute_loss(None, VALUES["y"], model(VALUES["ids"], training=True))
    variables = model.trainable_variables
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    model.optimizer.apply([tf.convert_to_tensor(gradient) for gradient in gradients], variables)


@pytest.mark.parametrize("count", [0, 2000])
def test_a_branch_of_a_formula_writes_rows_only_if_it_is_taken(count: int) -> None:
    """In the lazy mode, which updates the touched rows of every formula."""
    single = captured(lambda: DecaysInBranchLater(lambda _: True, count), mode="lazy")
    plain = captured(lambda: optimizers.Adagrad(0.1))
    tables = []
    for one in (single, plain):
        device = graph_of(one, "local")
        device.initialize()
        before = device.variables()[TABLE]
        device.step([VALUES])
        tables.append(device.variables()[TABLE])
    touched = np.zeros(before.shape, bool)
    touched[VALUES["ids"]] = True
    decayed = tables[1] * (1 - DECAY) if count else tables[1]
    np.testing.assert_allclose(tables[0], np.where(touched, decayed, before), rtol=1e-12)
