"""Several SavedModels as one that averages what they predict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from parallax_runner.errors import ExportError
from parallax_runner.export.ensemble import write_ensemble
from tests.single.export.serving import DATASET, ROWS, WIDTH, Features, Model, exported, served, train


def lookup(start: float, outputs: Any = None) -> Model:
    """Of two members the variables have the same names, and not the same values."""

    def model(features: Features) -> Mapping[str, Any]:
        initializer = tf.constant_initializer(start)
        table = tf.get_variable("table", [ROWS, WIDTH], initializer=initializer)
        score = tf.reduce_sum(tf.nn.embedding_lookup(table, features["ids"]), axis=1)
        loss = tf.reduce_mean(tf.square(score - features["y"]))
        given = {"score": score, "is_high": score > 0} if outputs is None else outputs(score)
        return {"loss": loss, "train_op": train(loss), "outputs": given}

    return model


def other_inputs(features: Features) -> Mapping[str, Any]:
    weights = tf.get_variable("weights", [WIDTH])
    score = tf.reduce_sum(features["x"] * weights, axis=1)
    loss = tf.reduce_mean(tf.square(score - features["y"]))
    return {"loss": loss, "train_op": train(loss), "outputs": {"score": score, "is_high": score > 0}}


def test_it_gives_the_mean_of_numbers_and_leaves_the_rest_out(tmp_path: Path) -> None:
    members = [exported(lookup(start), tmp_path / str(start))[0] for start in (0.0, 2.0, 7.0)]
    (tmp_path / "ensemble").mkdir()
    (tmp_path / "ensemble" / "of_an_earlier_start").touch()
    assert write_ensemble(members, tmp_path / "ensemble") == ["score"]
    assert not (tmp_path / "ensemble" / "of_an_earlier_start").exists()
    ids = DATASET.validation_batch(0, 5)["ids"]
    found = [served(folder, ids=ids)["score"] for folder in members]
    assert np.ptp(found, axis=0).min() > 1
    ours = served(tmp_path / "ensemble", ids=ids)
    assert set(ours) == {"score"}
    np.testing.assert_allclose(ours["score"], np.mean(found, axis=0), rtol=1e-6)
    assert tf2.saved_model.contains_saved_model(tmp_path / "ensemble")


@pytest.mark.parametrize(
    ("second", "wrong"),
    [
        (other_inputs, "the inputs of .* differ from those of"),
        (lookup(1.0, lambda score: {"score": score}), "the outputs of .* differ from those of"),
    ],
)
def test_members_that_do_not_fit_together(second: Model, wrong: str, tmp_path: Path) -> None:
    members = [exported(model, tmp_path / str(number))[0] for number, model in enumerate((lookup(1.0), second))]
    with pytest.raises(ExportError, match=wrong):
        write_ensemble(members, tmp_path / "ensemble")
    assert not (tmp_path / "ensemble").exists()


def test_there_is_no_mean_of_classes(tmp_path: Path) -> None:
    member, _ = exported(lookup(1.0, lambda score: {"is_high": score > 0}), tmp_path)
    with pytest.raises(ExportError, match=r"\['is_high'\] are not floating-point numbers"):
        write_ensemble([member, member], tmp_path / "ensemble")
