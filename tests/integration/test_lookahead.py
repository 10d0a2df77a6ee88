"""Runs with and without lookahead give the same results, including checkpoints and validations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from tests.integration.runs import Run, launch

ARGUMENTS = ("train.steps=20", "ckpt.save_steps=7", "train.validate_steps=10", "train.log_every=1")


def trained(lm: tuple[str, ...], folder: Path, lookahead: str) -> Run:
    arguments = (*lm, *ARGUMENTS, "comm=sharded", f"comm.lookahead={lookahead}", "tracking=off")
    return launch(*arguments, cwd=folder, name=lookahead).expect_success()


def variables(run: Run, step: int) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(run.ckpt_dir / f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_what_is_saved_and_validated_on_the_way_is_the_same(lm: tuple[str, ...], tmp_path: Path) -> None:
    ahead, plain = trained(lm, tmp_path, "on"), trained(lm, tmp_path, "off")
    assert [any(one["is_ahead"] for one in run.plan["variables"]) for run in (ahead, plain)] == [True, False]
    assert list(ahead.losses()) == list(plain.losses()) == list(range(1, 21))
    np.testing.assert_allclose(list(ahead.losses().values()), list(plain.losses().values()), rtol=1e-5)
    for step in (7, 14, 20):
        expected, found = variables(plain, step), variables(ahead, step)
        assert set(found) == set(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=f"{name} at step {step}")
    told = [run.summary["validation_loss"] for run in (ahead, plain)]
    np.testing.assert_allclose(*told, rtol=1e-5)
