"""Which callbacks of Keras are called, and which may read weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import keras
import numpy as np
import pytest

from parallax_runner.api.callback_state import BestWeights
from parallax_runner.api.fit_callbacks import FitCalls, reads_weights, usable
from parallax_runner.errors import CheckpointError, ConfigError


class OfEpochs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        """Does nothing."""


class OfBatches(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Does nothing."""


def test_callbacks_of_epochs_are_called() -> None:
    given = [
        OfEpochs(),
        keras.callbacks.CSVLogger("x"),
        keras.callbacks.LambdaCallback(),
    ]
    assert usable(given) == (given, [])


@pytest.mark.parametrize(
    "callback",
    [OfBatches(), keras.callbacks.LambdaCallback(on_train_batch_end=print)],
    ids=["a class", "a lambda"],
)
def test_one_that_is_called_for_each_batch_is_refused(callback: object) -> None:
    with pytest.raises(ConfigError, match=r"overrides on_train_batch_end, but .* on_epoch_end"):
        usable([callback])


def test_tensorboard_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    board = keras.callbacks.TensorBoard("x")
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match="TensorBoard needs the package tensorboard, which is not installed"):
        usable([board])
    installed = ModuleType("tensorboard")
    installed.__spec__ = sys.__spec__
    monkeypatch.setitem(sys.modules, "tensorboard", installed)
    assert usable([board]) == ([board], [])


def test_one_that_could_have_no_effect_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SwapEMAWeights .*omit it; with use_ema=True"):
        usable([keras.callbacks.SwapEMAWeights()])


@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.ModelCheckpoint("x.keras"),
        keras.callbacks.BackupAndRestore("x"),
        keras.callbacks.TerminateOnNaN(),
    ],
)
def test_what_the_run_does_itself_is_left_out_and_told(callback: object) -> None:
    kept, (note,) = usable([callback])
    assert not kept and type(callback).__name__ in note


def test_a_class_derived_from_keras_own_is_no_longer_known() -> None:
    class Own(keras.callbacks.ModelCheckpoint):
        """Overrides nothing."""

    with pytest.raises(ConfigError, match="Own overrides"):
        usable([Own("x.keras")])


def test_who_reads_weights() -> None:
    early = keras.callbacks.EarlyStopping
    assert not reads_weights(early()) and reads_weights(early(restore_best_weights=True))
    assert reads_weights(OfEpochs()) and not reads_weights(keras.callbacks.ReduceLROnPlateau())
    assert reads_weights(keras.callbacks.TensorBoard("x", histogram_freq=1))
    assert reads_weights(keras.callbacks.TensorBoard("x", embeddings_freq=1))
    assert not reads_weights(keras.callbacks.TensorBoard("x"))


def calls_of(model: keras.Model, *callbacks: keras.callbacks.Callback, folder: Path) -> FitCalls:
    return FitCalls(
        model,
        callbacks,
        params={"epochs": 3, "steps": 1, "verbose": 0},
        logs=lambda: {"loss": 1.0},
        validation_logs=lambda _: {},
        load=lambda: None,
        best=BestWeights(folder, "fit-1"),
    )


def test_a_rate_that_returns_to_its_first_value_is_told(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    model.optimizer.build(model.trainable_variables)
    rates = keras.callbacks.LearningRateScheduler(lambda epoch: [0.5, 0.25, 0.5][epoch])
    calls = calls_of(model, rates, folder=tmp_path)
    told = []
    for epoch in range(3):
        calls.begin(epoch)
        told += calls.learning_rates.values()
        calls.end(epoch, epoch + 1)
    assert told == [0.5, 0.25, 0.5]


def test_the_state_of_an_epoch_continues_in_another_process(tmp_path: Path) -> None:
    """The history, and what Keras' callbacks have counted, go through JSON."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    stop = keras.callbacks.EarlyStopping("loss", patience=3, restore_best_weights=True)
    plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=3)
    before = calls_of(model, plateau, stop, folder=tmp_path)
    for epoch in range(2):
        before.begin(epoch)
        model.set_weights([one + 1 for one in model.get_weights()])
        before.end(epoch, epoch + 1)
    state = json.loads(json.dumps(before.state()))
    best = stop.best_weights
    other_stop = keras.callbacks.EarlyStopping("loss", patience=5, restore_best_weights=True)
    other_plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=3)
    after = calls_of(model, other_stop, other_plateau, folder=tmp_path)
    after.resume(state)
    assert after.history.history["loss"] == [1.0, 1.0]
    assert after.history.epoch == [0, 1]
    assert (other_stop.wait, other_stop.best, other_stop.best_epoch, other_stop.patience) == (1, 1.0, 0, 5)
    assert (other_plateau.wait, other_plateau.best) == (1, 1.0)
    for one, other in zip(other_stop.best_weights, best, strict=True):
        np.testing.assert_array_equal(one, other)


def test_best_weights_that_no_checkpoint_needs_are_removed(tmp_path: Path) -> None:
    stop = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
    kept = BestWeights(tmp_path, "fit-1")
    for epoch in (0, 3):
        stop.best_weights, stop.best_epoch = [np.full(2, epoch)], epoch
        (state,) = kept.states_of([stop])
    assert [path.name for path in tmp_path.iterdir()] == [state["best_weights"]] == ["fit-1-best-0-3.npz"]
    (tmp_path / state["best_weights"]).unlink()
    with pytest.raises(CheckpointError, match=r"fit-1-best-0-3.npz, the best weights of EarlyStopping, cannot be read"):
        BestWeights(tmp_path, "fit-1").restore([stop], [state])
