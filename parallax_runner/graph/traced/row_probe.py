"""Finds out whether an optimizer's formula for a variable can run on only some rows.

The formula that is examined is that of the optimizer itself, not that of a copy. It is traced in a graph of its own
(`row_formula`). The answers come from the data flow of this graph (`row_proof`), which does not depend on the values of
variables such as the count of updates. Updates at several counts confirm them, with the arithmetic of the variable's
own dtype.
"""

from __future__ import annotations

import itertools
import logging
from typing import Any

import numpy as np
import tensorflow as tf

from parallax_runner.graph.traced import row_proof
from parallax_runner.graph.traced.row_formula import RowFormula, traced_formula

log = logging.getLogger(__name__)
ROWS, UNTOUCHED = 4, 1
COUNTS = (0, 1, 10, 1000, 100_000, 10_000_000)


def keeps_untouched_rows(optimizer: Any, variable: Any, learning_rate: Any) -> bool:
    """Returns whether rows are independent, and an update leaves a row with zero gradient and its slots
    identical.

    Zeros of both signs count as identical.
    """
    formula = _formula(optimizer, variable, learning_rate, lazily=False)
    return formula is not None and row_proof.keeps_untouched_rows(formula) and _kept_in_trials(formula)


def works_by_row(optimizer: Any, variable: Any, learning_rate: Any) -> bool:
    """Returns whether an update of only some rows, with their weight decay, gives these rows the same values as an
    update of all rows, and writes nothing else."""
    if _has_own_decay(optimizer):
        return False
    formula = _formula(optimizer, variable, learning_rate, lazily=True)
    return formula is not None and row_proof.works_by_row(formula)


def _has_own_decay(optimizer: Any) -> bool:
    """Returns whether the optimizer's class decays weights in its own way, as Muon does, which changes all rows."""
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    return type(optimizer)._apply_weight_decay is not TFOptimizer._apply_weight_decay


def _formula(optimizer: Any, variable: Any, learning_rate: Any, *, lazily: bool) -> RowFormula | None:
    """Returns the traced formula, or None if it cannot be traced for some rows."""
    try:
        return traced_formula(optimizer, variable, learning_rate, lazily=lazily)
    except Exception as error:  # a formula can fail in any way, for example because it needs the table's own shape
        log.debug("%s does not update rows of «%s»: %s", type(optimizer).__name__, variable.path, error)
        return None


def _kept_in_trials(formula: RowFormula) -> bool:
    """Runs the formula at each of `COUNTS`, with rows of zeros and of random positive numbers. Returns whether the row
    with zero gradient was kept each time."""
    generator = np.random.default_rng(5)
    outside = row_proof.values_from_outside(formula)
    if not all(one.shape.is_fully_defined() for one in outside):
        return False
    gradient = generator.normal(size=[ROWS, *formula.gradient.shape[1:]])
    gradient[UNTOUCHED] = 0.0
    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})  # a driver must not occupy a GPU
    with tf.compat.v1.Session(graph=formula.graph, config=config) as session:
        for count, largest in itertools.product(COUNTS, (0.0, 1.0)):
            given: dict[str, Any] = {one.name: generator.uniform(0.1, 1.0, one.shape) for one in outside}
            given |= {one.name: count for one in outside if _counts_updates(formula, one)}
            given |= {one.name: generator.uniform(0.0, largest, [ROWS, *one.shape[1:]]) for one in formula.before}
            # The old rows are fetched, too, because the session rounds what it is given to their dtype.
            found = session.run([formula.before, formula.after], {**given, formula.gradient.name: gradient})
            if any((old[UNTOUCHED] != new[UNTOUCHED]).any() for old, new in zip(*found, strict=True)):
                return False
    return True


def _counts_updates(formula: RowFormula, tensor: Any) -> bool:
    return row_proof.variable_read(formula, tensor) == formula.iterations_id
