"""N ranks leave Keras models and steps with a tape as plain Keras leaves them on one device."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

from parallax_runner.verify.compare import compare
from tests.parallel import traced_cases
from tests.parallel.cases import STEPS, Case
from tests.parallel.conftest import Launches
from tests.parallel.matrix import TRACED, TRACED_FAULTY, TRACED_SHORT
from tests.parallel.test_equivalence import compared

if TYPE_CHECKING:
    from tests.parallel.plain_keras import Evaluated  # imports Keras

TOLERANCE = 1e-10
RANKS = 2  # for three ranks see test_equivalence_of_3_ranks.py

pytestmark = pytest.mark.timeout(1800)  # the first test waits for the launch


def test_cases_have_every_model_and_every_optimizer_in_every_mode() -> None:
    from tests.parallel import keras_models, keras_optimizers  # these import Keras

    assert {case.model for case in (*TRACED, *TRACED_SHORT)} == set(keras_models.MODELS)
    pairs = itertools.product(keras_optimizers.OPTIMIZERS, traced_cases.COMMS)
    assert set(pairs) == {(case.optimizer, case.comm) for case in TRACED}
    assert {(case.comm, case.ranks) for case in TRACED} == set(itertools.product(traced_cases.COMMS, (2, 3)))


def evaluates_as(plain: Evaluated, by_rank: list[dict[str, np.ndarray]], sizes: list[int]) -> None:
    """Checks the ranks' losses averaged by the `sizes` of batches, the sums of their metrics, and all predictions."""
    equal = functools.partial(np.testing.assert_allclose, rtol=TOLERANCE, atol=1e-14)
    equal(np.average([one["loss"] for one in by_rank], weights=sizes), plain.loss)
    sums = [name for name in by_rank[0] if name.startswith("sums/")]
    # The sums have the order in which the step returns what it computes from them.
    totals = [np.sum([one[name] for one in by_rank], axis=0) for name in sums]
    assert len(totals) == len(plain.sums)
    for expected in plain.sums:
        alike = [at for at, total in enumerate(totals) if total.shape == expected.shape]
        place = next((at for at in alike if np.allclose(totals[at], expected, rtol=TOLERANCE, atol=1e-14)), None)
        assert place is not None, (expected, totals)
        totals.pop(place)
    outputs = [name for name in by_rank[0] if name.startswith("outputs/")]
    for name, expected in zip(outputs, plain.outputs, strict=True):
        equal(np.concatenate([one[name] for one in by_rank]), expected, err_msg=name)


@pytest.mark.cases([case for case in TRACED if case.model not in traced_cases.OF_OWN_BATCH])
def test_equals_plain_keras(case: Case, launched: Launches) -> None:
    """From bitwise equal initial values. Gradients are merged, unless each id occurs once or the update is by hand."""
    from tests.parallel import plain_keras  # imports Keras

    runs, merged = launched[case.ranks], case.model not in ("once", traced_cases.WITHOUT_OPTIMIZER)
    initial, steps = runs.arrays(case, "initial"), [[case.batch(n, r) for r in range(case.ranks)] for n in range(STEPS)]
    last = [case.validation_batch(rank) for rank in range(case.ranks)]
    plain = plain_keras.train(case, initial, steps, last, merged=merged)
    firsts = compare(initial, plain.first, tolerance=0.0)
    assert firsts.ok, (firsts.first_difference, firsts.missing, firsts.unexpected)
    finals = compare(runs.arrays(case, "final"), plain.final, tolerance=TOLERANCE, initial=initial)
    assert finals.ok, (finals.first_difference, finals.missing, finals.unexpected)
    by_rank = [runs.arrays(case, "losses", rank)["losses"] for rank in range(case.ranks)]
    np.testing.assert_allclose(np.mean(by_rank, axis=0), plain.losses, rtol=TOLERANCE)
    assert (plain.evaluated is None) == (case.kind == "tape")
    if plain.evaluated is not None:
        evaluated = [runs.arrays(case, "validation", rank) for rank in range(case.ranks)]
        evaluates_as(plain.evaluated, evaluated, [len(next(iter(batch.values()))) for batch in last])


@pytest.mark.cases(TRACED_FAULTY)
def test_finds_a_fault_of_traced_steps(case: Case, launched: Launches) -> None:
    """The correct step is captured in this process, without a fault."""
    from tests.parallel import plain_keras  # imports Keras

    initial = compare(launched[2].arrays(case, "initial"), plain_keras.made_values(case), tolerance=TOLERANCE)
    assert initial.ok == (case.fault != "ignored_weights"), initial.first_difference
    final, _ = compared(case, launched)
    assert not (final.missing or final.unexpected)
    assert (final.max_relative > 1000 * TOLERANCE) == initial.ok, final.max_relative


@pytest.mark.cases(TRACED_SHORT)
def test_layers_of_16_bits_differ_from_one_device_by_rounding(case: Case, launched: Launches) -> None:
    """Weights have 32 bits. A value of bfloat16 that is rounded the other way differs by up to 1 part in 128. Most
    often all values are equal."""
    comparison, _ = compared(case, launched)
    assert not (comparison.missing or comparison.unexpected)
    runs = launched[case.ranks]
    initial, final = runs.arrays(case, "initial"), runs.arrays(case, "final")
    trained = [one for one in comparison.variables if one.name.endswith(("/embeddings", "/kernel", "/bias"))]
    assert len(trained) == 5
    for one in trained:
        assert final[one.name].dtype == np.float32, one.name
        moved = np.abs(final[one.name] - initial[one.name]).max()
        assert one.max_absolute < 0.01 * moved, one
