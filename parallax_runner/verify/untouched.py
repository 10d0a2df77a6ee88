"""Compares the captured graph with the user's untouched training step, both on one device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.data.shares import SHARE
from parallax_runner.graph.seeds import stream_draws
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.untouched import Untouched
from parallax_runner.verify.compare import Comparison, compare, largest
from parallax_runner.verify.plain_tensorflow import plain_tensorflow
from parallax_runner.verify.prove import tolerance_of
from parallax_runner.verify.reference import Reference

Batch = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class UntouchedComparison:
    """The result of comparing the captured graph with the untouched step.

    `comparison` is the comparison of step `steps` if that step differs, or the largest differences of steps 1 to
    `steps`. Step 0 stands for the initial values. If nothing could be compared, `comparison` is None and `left_out` is
    the reason.
    """

    comparison: Comparison | None
    steps: int = 0
    left_out: str | None = None

    @property
    def differs(self) -> bool:
        """Whether the captured graph computes other values than the untouched step."""
        return self.comparison is not None and not self.comparison.ok


class _CannotCompare(Exception):
    """Raised with the reason why nothing can be compared."""


def compare_with_untouched(
    single: SingleDeviceGraph, made: AbstractContextManager[Untouched], batches: Iterable[Batch]
) -> UntouchedComparison:
    """Trains on each batch with the untouched step and with the captured graph, and compares all variables.

    Both begin with the graph's initial values, which must be those of an existing model. After a step without a
    difference, the untouched step continues with the values of the captured graph, so rounding errors do not grow.

    Raises ParallaxError if the captured graph cannot be split at its gradients.
    """
    draws = stream_draws(single.meta_graph.graph_def, [single.train_op])
    if draws:
        return UntouchedComparison(
            None,
            left_out=f"«{draws[0].name}» ({draws[0].op}) draws other numbers in a graph than in eager execution; draws "
            "with a seed as an argument (tf.random.stateless_…, keras.random) can be compared",
        )
    try:
        with _captured(single) as captured:
            captured.initialize()
            return _compared(single, captured, made, batches)
    except _CannotCompare as error:
        return UntouchedComparison(None, left_out=str(error))


def _captured(single: SingleDeviceGraph) -> Reference:
    """Returns the captured graph on one device. Like an eager op, each op runs on the CPU and is not optimized."""
    config = tf.ConfigProto(allow_soft_placement=True, device_count={"GPU": 0})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    return Reference(single, ranks=1, average_sparse=True, config=config)


def _compared(
    single: SingleDeviceGraph,
    captured: Reference,
    made: AbstractContextManager[Untouched],
    batches: Iterable[Batch],
) -> UntouchedComparison:
    tolerance, all_steps, step = tolerance_of(single.variables), None, 0
    with _Own(made) as own:
        before = captured.values()
        if (initial := own.initial_values(before)) is not None:
            found = compare(before, initial, tolerance=0)
            if not found.ok:
                return UntouchedComparison(found, 0)
        for step, batch in enumerate(batches, 1):
            expected = own.after(batch, before)
            captured.step([{**batch, SHARE: np.asarray(1.0)} if single.is_uneven else batch])
            actual = captured.values()
            found = compare(actual, expected, tolerance=tolerance, initial=before)
            if not found.ok:
                return UntouchedComparison(found, step)
            all_steps = found if all_steps is None else largest(all_steps, found)
            before = actual
    return UntouchedComparison(all_steps, step)


class _Own:
    """The untouched step. Raises _CannotCompare if the step fails in plain TensorFlow."""

    def __init__(self, made: AbstractContextManager[Untouched]) -> None:
        self._made = made

    def __enter__(self) -> _Own:
        try:
            self._untouched = self._made.__enter__()
        except Exception as error:
            raise _CannotCompare(f"the model's function failed when it was called again: {_told(error)}") from error
        return self

    def __exit__(self, *exception: object) -> None:
        self._made.__exit__(None, None, None)

    def initial_values(self, captured: Batch) -> dict[str, np.ndarray] | None:
        """Returns the values with which a run begins, or None if the step's variables do not have them."""
        if not self._untouched.has_initial_values:
            return None
        self._check_names(captured)
        return self._values_of(captured)

    def after(self, batch: Batch, before: Batch) -> dict[str, np.ndarray]:
        """Returns the values of all variables after a step on `batch` that begins with the values `before`."""
        untouched = self._untouched
        try:
            with plain_tensorflow(dense=untouched.is_keras):
                untouched.make_variables(before, batch)
                self._check_names(before)
                untouched.load(before)
                untouched.train(batch)
        except _CannotCompare:
            raise
        except Exception as error:
            raise _CannotCompare(f"the step fails in plain TensorFlow: {_told(error)}") from error
        return self._values_of(before)

    def _values_of(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        values = self._untouched.values()
        return {name: values[name] for name in names}

    def _check_names(self, captured: Batch) -> None:
        names = self._untouched.names
        if names != set(captured):
            raise _CannotCompare(
                "the model's function created other variables when it was called again: missing "
                f"{sorted(set(captured) - names)}, unexpected {sorted(names - set(captured))}"
            )


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
