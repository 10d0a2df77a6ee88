"""A file of Keras becomes a checkpoint with all variables of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.checkpoints.checkpoint_files import read_sidecar
from parallax_runner.checkpoints.checkpoint_ops import check_fits
from parallax_runner.checkpoints.converted import write_converted
from parallax_runner.checkpoints.origin import source_of
from parallax_runner.config.keras_files import is_keras_file
from parallax_runner.driver.keras_source import checkpoint_of
from parallax_runner.errors import CheckpointError
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step
from tests.single.small_models import captured

FEATURES = {"x": ((4, 3), "float32"), "y": ((4,), "float32")}


def make(*, head: str = "head", units: int = 2, optimizer: str = "adam") -> Any:
    x = keras.Input((3,), name="x")
    hidden = keras.layers.Dropout(0.1)(keras.layers.Dense(units, name="trunk")(x))
    model = keras.Model(x, keras.layers.Dense(1, name=head)(hidden), name="model")
    model.compile(optimizer, "mse")
    return model


def saved(folder: Path, **options: Any) -> Path:
    model = make(**options)
    model.fit(np.ones([8, 3]), np.ones(8), batch_size=4, verbose=0)
    model.save(folder / "saved.keras")
    return folder / "saved.keras"


def single() -> SingleDeviceGraph:
    return capture_step(make, FEATURES, seed=1, options={"labels": "y"})


def test_it_has_all_variables_and_the_step_of_the_optimizer(tmp_path: Path) -> None:
    path = saved(tmp_path)
    found = single()
    prefix = checkpoint_of(path, found, tmp_path / "run")
    check_fits(prefix, found.variables)
    assert read_sidecar(prefix).step == 2
    assert source_of(prefix) == path
    reader = tf.train.load_checkpoint(str(prefix))
    expected = keras.models.load_model(path)
    for variable in [*expected.trainable_variables, *expected.optimizer.variables]:
        np.testing.assert_array_equal(reader.get_tensor(variable.path), variable)


def test_state_of_an_optimizer_that_the_file_lacks_is_zero(tmp_path: Path) -> None:
    prefix = checkpoint_of(saved(tmp_path, optimizer="sgd"), single(), tmp_path / "run")
    reader = tf.train.load_checkpoint(str(prefix))
    assert not reader.get_tensor("adam/trunk_kernel_momentum").any()
    assert reader.get_tensor("trunk/kernel").any() and read_sidecar(prefix).step == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"head": "other"}, r"this file has no value for «head/kernel» and 1 more of the model"),
        ({"units": 5}, r"variable «trunk/kernel» has shape \[3, 5\] in this file, but shape \[3, 2\] in the model"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=said):
        checkpoint_of(saved(tmp_path, **options), single(), tmp_path / "run")


def test_a_graph_has_no_file_of_keras(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="and this model is none"):
        checkpoint_of(tmp_path / "saved.keras", captured(optimizer="adam"), tmp_path)


def test_a_new_conversion_replaces_the_old_one(tmp_path: Path) -> None:
    write_converted(tmp_path, {"one": np.ones(2)}, origin=tmp_path / "a.keras", step=3)
    prefix = write_converted(tmp_path, {"one": np.zeros(2)}, origin=tmp_path / "b.keras")
    assert source_of(prefix) == tmp_path / "b.keras"
    assert not list(prefix.parent.glob("model.ckpt-3*"))
    assert source_of(tmp_path / "ckpt" / "model.ckpt-3") == tmp_path / "ckpt" / "model.ckpt-3"


def test_files_of_keras_are_told_by_their_names() -> None:
    assert is_keras_file("runs/model.keras") and is_keras_file(Path("w.weights.h5"))
    assert not is_keras_file("runs/keras") and not is_keras_file("w.h5")
