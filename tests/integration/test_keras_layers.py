"""A model may use Keras layers; the driver imports Keras only at their first use."""

from __future__ import annotations

from pathlib import Path

from tests.integration.runs import launch

MODEL = """
import tensorflow.compat.v1 as tf
import tensorflow as tf2

def build(features, optimizer):
    from tensorflow.keras.layers import Dense
    x = tf.reshape(features["x"], [-1, 1])
    y = Dense(1)(tf2.keras.layers.Dense(4, name="hidden")(x))
    loss = tf.reduce_mean(tf.square(y[:, 0] - features["y"]))
    return {"loss": loss, "train_op": optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())}
"""


def test_keras_layers_are_proven_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text(MODEL)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "layers.yaml").write_text("_target_: layers.build\n")
    arguments = ("--config-dir=conf", "model=layers", "data=linear", "optimizer=gradient_descent")
    run = launch(*arguments, "action=verify", "train.steps=2", "tracking=off", cwd=tmp_path).expect_success()
    assert "hidden/kernel" in [variable["name"] for variable in run.plan["variables"]]
    assert run.summary["verified"]
