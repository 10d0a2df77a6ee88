"""Every model, step and optimizer of the equivalence matrix: its capture equals its own step, in float64."""

from __future__ import annotations

import pytest

from parallax_runner.graph.traced.capture_step import capture_step
from parallax_runner.graph.traced.untouched import untouched_step
from parallax_runner.verify.untouched import compare_with_untouched
from tests.parallel import keras_models, traced_cases
from tests.parallel.case_models import BATCH
from tests.parallel.cases import Case

STEPS = 6  # the loss of step 5 is infinite with a dynamic loss scale
TAPE = (
    *traced_cases.TAPE,
    *traced_cases.TAPE_SUMS,
    *(traced_cases.WITHOUT_OPTIMIZER, traced_cases.DECLARED_TAPE, traced_cases.WITH_TABLE),
)
MODELS = [name for name in keras_models.MODELS if name != traced_cases.LAZY]  # which plain Keras does not have
CASES = [(model, "adam") for model in MODELS] + [("functional", one) for one in traced_cases.OPTIMIZERS]


@pytest.mark.parametrize(("model", "optimizer"), dict.fromkeys(CASES))
def test_the_capture_equals_the_own_step(model: str, optimizer: str) -> None:
    kind = "tape" if model in TAPE else "keras"
    case = Case(kind=kind, model=model, optimizer=optimizer, comm="mpi", ranks=1)
    traced = keras_models.MODELS[model]
    kinds = {name: keras_models.FEATURES[name] for name in traced.features}
    features = {name: ((BATCH, *shape), dtype) for name, (shape, dtype) in kinds.items()}
    with keras_models.as_case(case):
        single = capture_step(lambda: keras_models.make(case)[0], features, seed=7, options=traced.options)
        own = untouched_step(lambda: keras_models.make(case)[0], features, seed=7, options=traced.options)
        batches = (keras_models.batch(case, step, 0) for step in range(STEPS))
        found = compare_with_untouched(single, own, batches)
    assert found.left_out is None and not found.differs and found.steps == STEPS
    assert found.comparison is not None and found.comparison.max_relative < 1e-10
