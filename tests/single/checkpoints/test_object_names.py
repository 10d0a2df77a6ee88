"""Checkpoints of tf.train.Checkpoint tell the names of variables."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from parallax_runner.checkpoints.checkpoint_ops import stored_in
from parallax_runner.checkpoints.object_names import tensors_by_name


def by_name(prefix: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(tensor) for name, tensor in tensors_by_name(prefix, stored_in(prefix)).items()}


def test_the_variables_of_a_keras_model_and_of_its_optimizer(tmp_path: Path) -> None:
    x = keras.Input((3,), name="x")
    model = keras.Model(x, keras.layers.Dense(2, name="last")(keras.layers.Dense(4, name="first")(x)))
    model.compile(keras.optimizers.Adam(name="adam"), "mse")
    model.fit(np.ones([4, 3]), np.ones([4, 2]), verbose=0)
    prefix = tmp_path / "theirs"
    tf.train.Checkpoint(net=model, optimizer=model.optimizer).write(str(prefix))
    found = by_name(prefix)
    for variable in [*model.variables, *model.optimizer.variables]:
        np.testing.assert_array_equal(found[variable.path], variable)


def test_variables_with_the_same_name_have_those_of_their_objects(tmp_path: Path) -> None:
    root = tf.train.Checkpoint(one=tf.Variable(1.0), other=tf.Variable(2.0), table=tf.Variable([3.0], name="table"))
    root.write(str(tmp_path / "theirs"))
    assert by_name(tmp_path / "theirs") == {"one": 1.0, "other": 2.0, "table": np.array([3.0], np.float32)}


def test_a_saver_names_tensors_after_variables(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("scope/table", [2], initializer=tf.compat.v1.ones_initializer())
        session.run(variable.initializer)
        tf.compat.v1.train.Saver().save(session, str(tmp_path / "theirs"))
    assert list(tensors_by_name(tmp_path / "theirs", stored_in(tmp_path / "theirs"))) == ["scope/table"]
