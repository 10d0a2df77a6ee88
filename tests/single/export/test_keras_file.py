"""`model.keras`: Keras alone loads what a checkpoint of a captured Keras model holds; a fault costs no run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.errors import ExportError
from parallax_runner.export.end_of_run import export_at_end
from parallax_runner.export.keras_file import write_keras_file
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step

ROWS, BATCH = 20, 4
GENERATOR = np.random.default_rng(1)
EXAMPLES = {
    "ids": GENERATOR.integers(0, ROWS, [BATCH, 3]),
    "y": GENERATOR.standard_normal([BATCH, 1]).astype(np.float32),
}
DATASET = ArrayDataset(train=EXAMPLES, validation=EXAMPLES, words_per_example=None, seed=1)


def make_model() -> Any:
    ids = keras.Input([3], dtype="int64", name="ids")
    rows = keras.layers.Flatten()(keras.layers.Embedding(ROWS, 4, name="rows")(ids))
    model = keras.Model(ids, keras.layers.Dense(1, name="last")(rows))
    model.compile("adagrad", "mse", metrics=["mae"])
    return model


class Scaled(keras.layers.Layer):
    """Keras cannot know what to give it when it makes another one."""

    def __init__(self, by: Callable[[Any], Any]) -> None:
        super().__init__()
        self._by = by

    def call(self, inputs: Any) -> Any:
        return self._by(inputs)


def make_one_that_cannot_be_saved() -> Any:
    ids = keras.Input([3], dtype="int64", name="ids")
    rows = keras.layers.Flatten()(keras.layers.Embedding(ROWS, 4, name="rows")(ids))
    model = keras.Model(ids, Scaled(lambda value: 2 * value)(keras.layers.Dense(1, name="last")(rows)))
    model.compile("adagrad", "mse")
    return model


def captured(make: Callable[[], Any], batch_size: int | None = BATCH) -> SingleDeviceGraph:
    shapes = {name: ((batch_size, *feature.shape), feature.dtype) for name, feature in DATASET.features.items()}
    return capture_step(make, shapes, seed=1, options={"labels": "y"})


def checkpoint(folder: Path, make: Callable[[], Any]) -> tuple[Path, Any]:
    """A model that plain Keras has trained, and the prefix of its values under Keras' own names."""
    keras.utils.clear_session()
    model = make()
    for _ in range(3):
        model.train_on_batch(EXAMPLES["ids"], EXAMPLES["y"])
    folder.mkdir()
    prefix, values = folder / "model.ckpt-3", values_of(model)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=[tf.constant(value) for value in values.values()],
    )
    return prefix, model


def values_of(model: Any) -> dict[str, np.ndarray]:
    return {variable.path: variable.numpy() for variable in [*model.variables, *model.optimizer.variables]}


def test_keras_loads_the_checkpoints_values_and_goes_on_from_them(tmp_path: Path) -> None:
    prefix, trained = checkpoint(tmp_path / "ckpt", make_model)
    path = write_keras_file(captured(make_model).keras_model, prefix=prefix, path=tmp_path / "model.keras")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["ckpt", "model.keras"]
    loaded = keras.models.load_model(path)
    np.testing.assert_array_equal(loaded(EXAMPLES["ids"]), trained(EXAMPLES["ids"]))
    assert values_of(loaded).keys() == values_of(trained).keys()
    for model in (loaded, trained):
        model.train_on_batch(EXAMPLES["ids"], EXAMPLES["y"])
    for name, value in values_of(trained).items():
        np.testing.assert_allclose(values_of(loaded)[name], value, rtol=1e-6, err_msg=name)


def test_one_that_keras_cannot_save_has_a_saved_model_and_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prefix, _ = checkpoint(tmp_path / "ckpt", make_one_that_cannot_be_saved)
    (tmp_path / "model.keras").write_text("of an earlier run")
    found = export_at_end(
        captured(make_one_that_cannot_be_saved),
        lambda: captured(make_one_that_cannot_be_saved, None),
        DATASET,
        log_checkpoints="last",
        last=prefix,
        run_dir=tmp_path,
    )
    assert (found["saved_model"], found["saved_model_error"]) == (str(tmp_path / "saved_model"), None)
    assert found["keras_model"] is None
    assert "Scaled" in str(found["keras_model_error"])
    assert "model.keras was not written" in caplog.text
    assert not list(tmp_path.glob(".partial*"))


def test_little_memory_costs_the_file_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix, _ = checkpoint(tmp_path / "ckpt", make_model)
    model = captured(make_model).keras_model
    # Weights and slots, 93 numbers each, and the optimizer's step (8 bytes) and rate, twice.
    needed_bytes = 2 * (2 * 4 * 93 + 8 + 4)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=needed_bytes - 1))
    with pytest.raises(ExportError, match=r"needs 1\.51 kB of memory.* 1\.51 kB is available"):
        write_keras_file(model, prefix=prefix, path=tmp_path / "model.keras")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=needed_bytes))
    write_keras_file(model, prefix=prefix, path=tmp_path / "model.keras")
