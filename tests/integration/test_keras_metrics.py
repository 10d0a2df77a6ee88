"""Metrics of a launched run, over all ranks, equal those of plain Keras on the same global batches."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from models import dlrm_keras
from parallax_runner import load_into_keras
from parallax_runner.data import clicks
from tests.integration.runs import launch
from tests.integration.test_keras_weights import MODEL, overrides

BATCH, STEPS = 16, 5  # examples per worker, with two workers
VALIDATED = 2 * BATCH + 7  # the last batch is smaller
DATA = {"dense_features": 3, "cardinalities": [500, 40], "examples": 1000, "seed": 1}
DATA |= {"validation_examples": VALIDATED}


def together(batches: Iterable[dict[str, np.ndarray]]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns inputs and labels of all batches together."""
    by_batch = list(batches)
    whole = {name: np.concatenate([batch[name] for batch in by_batch]) for name in by_batch[0]}
    return {name: whole[name] for name in ("dense", "categorical")}, whole["label"]


def evaluated(model: Any, batches: Iterable[dict[str, np.ndarray]]) -> dict[str, float]:
    """Returns Keras' metrics of all batches together."""
    found: dict[str, float] = model.evaluate(*together(batches), batch_size=BATCH, verbose=0, return_dict=True)
    return found


def test_a_run_reports_what_plain_keras_reports(tmp_path: Path) -> None:
    run = launch(
        *("experiment=dlrm_keras", *overrides("data", DATA), *overrides("model", MODEL), f"data.batch_size={BATCH}"),
        *(f"train.steps={STEPS}", f"train.log_every={STEPS}", "ckpt.save_steps=1", "tracking=off"),
        cwd=tmp_path,
    ).expect_success()
    keras.utils.clear_session()
    model = dlrm_keras.make_model(**{name: DATA[name] for name in ("dense_features", "cardinalities")}, **MODEL)
    dataset = clicks.load(**DATA)
    # The first step is reported at once, so the last report covers the others.
    load_into_keras(model, run.ckpt_dir / "model.ckpt-1")
    batches = together(dataset.train_batch(step * 2 * BATCH, 2 * BATCH) for step in range(1, STEPS))
    expected = model.fit(*batches, batch_size=2 * BATCH, shuffle=False, verbose=0).history
    assert run.summary["train_auc"] == pytest.approx(expected["auc"][0], rel=1e-5)
    (shown,) = re.findall(rf"^step {STEPS}/{STEPS}  loss \S+  auc (\S+)  ", run.stderr, re.M)
    assert float(shown) == pytest.approx(run.summary["train_auc"], abs=1e-4)

    held_out = [dataset.validation_batch(first, min(BATCH, VALIDATED - first)) for first in range(0, VALIDATED, BATCH)]
    found = {name: run.summary[f"validation_{name}"] for name in ("loss", "auc")}
    assert found == pytest.approx(evaluated(model, held_out), rel=1e-5)
    # One rank alone gives another value, and so does the mean over ranks, which have two batches and one.
    first, second = evaluated(model, held_out[::2])["auc"], evaluated(model, held_out[1::2])["auc"]
    assert all(abs(found["auc"] - other) > 1e-3 for other in (first, second, (first + second) / 2))
