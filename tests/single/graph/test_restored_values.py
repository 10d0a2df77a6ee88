"""Fine-tuning with `tf.train.init_from_checkpoint`, which replaces the initial values of variables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.errors import CaptureError
from tests.single.rewrite.one_device import Values, assert_same, batch, graph_of
from tests.single.small_models import FEATURES, ROWS, WIDTH, Features, captured, lookup_model

STEPS = 3
TABLE = np.arange(ROWS * WIDTH, dtype=np.float64).reshape(ROWS, WIDTH) / 10


@pytest.fixture(params=["references", "resources"])
def variables(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both kinds of variables of TensorFlow 1; scripts have references after `disable_v2_behavior`."""
    before = tf.resource_variables_enabled()
    (tf.disable_resource_variables if request.param == "references" else tf.enable_resource_variables)()
    yield
    (tf.enable_resource_variables if before else tf.disable_resource_variables)()


def saved(folder: Path, table: np.ndarray = TABLE) -> Path:
    """A checkpoint of plain TensorFlow, as another program wrote it."""
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable("pretrained/table", initializer=table)
        session.run(variable.initializer)
        return Path(tf.train.Saver([variable]).save(session, str(folder / "model.ckpt"), global_step=7))


def fine_tuned(prefix: Path, features: Features, pieces: int = 1) -> tf.Tensor:
    found = lookup_model(features, pieces=pieces)
    tf.train.init_from_checkpoint(str(prefix), {"pretrained/table": "table"})
    return found


def trained_by_tensorflow(prefix: Path, pieces: int, weights: np.ndarray) -> Values:
    """The same model in plain TensorFlow, with the initial «weights» of the other one, since they are drawn."""
    with tf.Graph().as_default():
        features = {name: tf.placeholder(dtype, shape) for name, (shape, dtype) in FEATURES.items()}
        loss = tf.reduce_mean(tf.square(fine_tuned(prefix, features, pieces) - features["y"]))
        train_op = tf.train.AdagradOptimizer(0.05).minimize(loss)
        *table, of_weights = tf.trainable_variables()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            of_weights.load(weights, session)
            for step in range(STEPS):
                session.run(train_op, {features[name]: value for name, value in batch(step).items()})
            return {"table": np.concatenate(session.run(table)), "weights": session.run(of_weights)}


@pytest.mark.parametrize(("comm", "partitions"), [("local", 1), ("ps", 1), ("ps", 2)])
@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.usefixtures("variables")
def test_fine_tuning_equals_plain_tensorflow(tmp_path: Path, comm: str, partitions: int, pieces: int) -> None:
    prefix = saved(tmp_path)
    single = captured(lambda features: fine_tuned(prefix, features, pieces))
    device = graph_of(single, comm, partitions=partitions)
    device.initialize()
    before = device.variables()
    np.testing.assert_array_equal(before["table"], TABLE)
    for step in range(STEPS):
        device.step([batch(step)])
    found = device.variables()
    expected = trained_by_tensorflow(prefix, pieces, before["weights"])
    assert_same({name: found[name] for name in expected}, expected, 1e-12)


@pytest.mark.usefixtures("variables")
def test_another_dtype_is_refused_in_one_sentence(tmp_path: Path) -> None:
    prefix = saved(tmp_path, TABLE.astype(np.float32))
    with pytest.raises(CaptureError) as refused:
        captured(lambda features: fine_tuned(prefix, features))
    assert str(refused.value) == (
        f"the initial value of variable «table» (float64) is «pretrained/table» in the checkpoint {prefix}, which is "
        "float32: give the variable the dtype float32, or write the checkpoint again with float64"
    )


def test_a_checkpoint_that_has_gone_is_named(tmp_path: Path) -> None:
    prefix = saved(tmp_path)

    def then_removed(features: Features) -> tf.Tensor:
        found = fine_tuned(prefix, features)
        prefix.with_name(f"{prefix.name}.index").unlink()
        return found

    with pytest.raises(CaptureError, match=r"«table» is in the checkpoint .*7, which cannot be read: "):
        captured(then_removed)
