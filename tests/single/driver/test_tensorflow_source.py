"""A checkpoint of plain TensorFlow becomes a checkpoint with all variables of the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.checkpoints.checkpoint_files import read_sidecar
from parallax_runner.checkpoints.checkpoint_ops import check_fits
from parallax_runner.checkpoints.origin import source_of
from parallax_runner.checkpoints.start import find_start, find_whole
from parallax_runner.driver.tensorflow_source import checkpoint_of
from parallax_runner.errors import CheckpointError
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from tests.single.driver.test_keras_source import make, single
from tests.single.small_models import ROWS, WIDTH, captured, lookup_model

PIECES = 2
VALUES = {
    "table": np.arange(ROWS * WIDTH, dtype=np.float64).reshape(ROWS, WIDTH),
    "weights": np.array([0.5, -2.0]),
    "global_step": np.array(7),
}


def of_objects(folder: Path, *, with_optimizer: bool = True, **options: Any) -> tuple[Path, Any]:
    """Returns a checkpoint that `tf.train.Checkpoint` has written, and its model."""
    keras.backend.clear_session(free_memory=False)
    model = make(**options)
    model.fit(np.ones([8, 3]), np.ones(8), batch_size=4, verbose=0)
    saved: Any = {"net": model} if with_optimizer else {"layers": model.layers}
    return Path(tf.train.Checkpoint(**saved).write(str(folder / "theirs"))), model


def of_saver(folder: Path, values: dict[str, np.ndarray]) -> Path:
    """Returns a checkpoint that a `Saver` of TensorFlow 1 has written."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in values.items():
            tf.compat.v1.get_variable(name, initializer=tf.constant(value))
        session.run(tf.compat.v1.global_variables_initializer())
        return Path(tf.compat.v1.train.Saver().save(session, str(folder / "theirs")))


def values_in(prefix: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_a_checkpoint_of_objects_has_the_model_and_its_optimizer(tmp_path: Path) -> None:
    path, model = of_objects(tmp_path)
    run = single()
    prefix = checkpoint_of(path, run, tmp_path / "run")
    check_fits(prefix, run.variables)
    assert read_sidecar(prefix).step == 2
    assert source_of(prefix) == path
    found = values_in(prefix)
    for variable in [*model.trainable_variables, *model.optimizer.variables]:
        np.testing.assert_array_equal(found[variable.path], variable, err_msg=variable.path)


def test_the_optimizer_may_be_missing(tmp_path: Path) -> None:
    path, model = of_objects(tmp_path, with_optimizer=False)
    prefix = checkpoint_of(path, single(), tmp_path / "run")
    found = values_in(prefix)
    np.testing.assert_array_equal(found["head/kernel"], model.get_layer("head").kernel)
    assert not found["adam/trunk_kernel_momentum"].any() and read_sidecar(prefix).step == 0


@pytest.mark.parametrize("pieces", [1, PIECES])
def test_a_checkpoint_of_a_saver_has_the_variables_of_a_graph(pieces: int, tmp_path: Path) -> None:
    """Also those that the graph splits with a partitioner, and in another dtype."""
    run = captured(lambda features: lookup_model(features, pieces=pieces), optimizer="adam")
    path = of_saver(tmp_path, VALUES | {"weights": VALUES["weights"].astype(np.float32)})
    prefix = checkpoint_of(path, run, tmp_path / "run")
    check_fits(prefix, run.variables)
    assert read_sidecar(prefix).step == VALUES["global_step"]
    found = values_in(prefix)
    for name, value in VALUES.items():
        np.testing.assert_array_equal(found[name], value)
    slots = set(found) - set(VALUES)
    assert slots and not any(found[name].any() for name in slots)


def without_weights(folder: Path) -> tuple[Path, SingleDeviceGraph]:
    return of_saver(folder, {"table": VALUES["table"], "other": np.ones(3)}), captured(optimizer="adam")


def narrow(folder: Path) -> tuple[Path, SingleDeviceGraph]:
    return of_saver(folder, VALUES | {"weights": np.ones(3)}), captured(optimizer="adam")


def damaged(folder: Path) -> tuple[Path, SingleDeviceGraph]:
    path = of_saver(folder, VALUES)
    file = path.with_name(f"{path.name}.data-00000-of-00001")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return path, captured(optimizer="adam")


def without_index(folder: Path) -> tuple[Path, SingleDeviceGraph]:
    path = of_saver(folder, VALUES)
    path.with_name(f"{path.name}.index").unlink()
    return path, captured(optimizer="adam")


def other_layer(folder: Path) -> tuple[Path, SingleDeviceGraph]:
    return of_objects(folder, head="other")[0], single()


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            without_weights,
            "has no variable «weights» of the model; it has «other», which the model does not have$",
        ),
        (other_layer, "has no variable «head/kernel», «head/bias» of the model; it has .*«other/kernel», which"),
        (narrow, r"variable «weights» has shape \[3\] in this checkpoint, but shape \[2\] in the model"),
        (damaged, "this checkpoint cannot be read: .*[Cc]hecksum"),
        (without_index, "this checkpoint cannot be read: "),
    ],
)
def test_what_does_not_fit_is_refused(
    case: Callable[[Path], tuple[Path, SingleDeviceGraph]], said: str, tmp_path: Path
) -> None:
    path, run = case(tmp_path)
    with pytest.raises(CheckpointError, match=said) as raised:
        checkpoint_of(path, run, tmp_path / "run")
    assert str(raised.value).startswith(f"ckpt.resume={path}: ") and "\n" not in str(raised.value)


def test_it_is_a_source_of_weights_but_not_of_a_training(tmp_path: Path) -> None:
    """It has no sidecar, so it does not tell where the training is in the data."""
    path = of_saver(tmp_path, VALUES)
    assert find_whole(str(path), tmp_path / "mine").prefix == path
    with pytest.raises(CheckpointError, match=r"begin a new run with ckpt\.warm_start=") as raised:
        find_start(str(path), tmp_path / "mine")
    assert "its sidecar theirs.json is missing" in str(raised.value)
