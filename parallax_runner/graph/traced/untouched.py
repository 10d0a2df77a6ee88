"""The user's own training step, as it runs without this package, and its variables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from parallax_runner.graph import capture
from parallax_runner.graph.components import Given, Specs, components, type_specs
from parallax_runner.graph.generators import seeded_generators
from parallax_runner.graph.traced.capture_step import global_seed
from parallax_runner.graph.traced.keras_model import MakeElement, steps_on
from parallax_runner.graph.traced.kinds import steps_of
from parallax_runner.graph.traced.model_variables import ModelVariables
from parallax_runner.graph.traced.trace import Steps, eager_on_cpu, functions_in_line
from parallax_runner.graph.traced.variables import TracedVariable, Variables

Values = Mapping[str, np.ndarray]


class Untouched:
    """A training step that runs eagerly, exactly as the user made it.

    `is_keras` says whether the step is the `train_step` of a Keras model. `has_initial_values` says whether a run
    begins with the values that the variables have now. The step's variables have the same names as in the captured
    graph. As in the captured graph, metrics start again in each step and are not among the variables.
    """

    def __init__(self, steps: Steps, features: Specs, variables: Variables, *, has_initial_values: bool) -> None:
        self.is_keras, self.has_initial_values = steps.model is not None, has_initial_values
        self._step, self._features, self._recorded = steps.own, features, variables
        self._metrics = {id(one.variable): np.array(one.variable.numpy()) for one in self._all() if one.is_metric}

    @property
    def names(self) -> set[str]:
        """The names of the variables that exist."""
        return {one.op_name for one in self._kept()}

    def make_variables(self, names: Collection[str], batch: Values) -> None:
        """Runs the step once on `batch` if variables among `names` do not exist yet. A step may create its variables
        when it is called for the first time."""
        if self.names == set(names):
            return
        # A variable that is created inside a compiled function cannot be recorded.
        with self._recorded.created(), functions_in_line():
            self.train(batch)

    def train(self, batch: Values) -> None:
        """Trains on one batch. `batch` maps each component of each feature (see `Feature`) to an array."""
        for metric in self._all():
            if metric.is_metric:
                first = self._metrics.get(id(metric.variable))
                metric.variable.assign(tf.zeros_like(metric.variable) if first is None else first)
        self._step({name: _assembled(name, spec, batch) for name, spec in sorted(self._features.items())})

    def load(self, values: Values) -> None:
        """Sets all variables from values by name."""
        for one in self._kept():
            one.variable.assign(values[one.op_name])

    def values(self) -> dict[str, np.ndarray]:
        """Returns a copy of the values of all variables by name."""
        return {one.op_name: np.array(one.variable.numpy()) for one in self._kept()}

    def _all(self) -> list[TracedVariable]:
        return self._recorded.all()

    def _kept(self) -> list[TracedVariable]:
        return [one for one in self._all() if not one.is_metric]


@contextmanager
def untouched_step(
    make: Callable[[], Any], features: Given, *, seed: int, options: Mapping[str, Any]
) -> Iterator[Untouched]:
    """Calls a model's function again, and provides the step of the new model. The arguments are those of
    `capture_step`."""
    capture.begin_afresh()
    variables, specs = Variables(keeps_values=True), type_specs(features)
    with seeded_generators(seed), global_seed(seed), eager_on_cpu():
        with variables.created():
            steps = steps_of(capture.called(make, sorted(specs)), specs, options)
        yield Untouched(steps, specs, variables, has_initial_values=False)  # random values can differ


@contextmanager
def untouched_model(model: Any, features: Specs, element: MakeElement) -> Iterator[Untouched]:
    """Provides the step of an existing compiled Keras model, and restores the model's values after the `with` block.
    The arguments are those of `capture_model`."""
    with eager_on_cpu():
        steps = steps_on(model, features, element, None)
        variables = ModelVariables(model)
        before = [(one.variable, np.array(one.variable.numpy())) for one in variables.all()]
        try:
            yield Untouched(steps, features, variables, has_initial_values=True)
        finally:
            for variable, value in before:
                variable.assign(value)


def _assembled(name: str, spec: Any, batch: Values) -> Any:
    """Returns a feature's batch as a tensor of the type `spec`, built from its components."""
    parts = [tf.constant(batch[part], inner.dtype) for part, inner in components(name, spec).items()]
    return tf.nest.pack_sequence_as(spec, parts, expand_composites=True)
