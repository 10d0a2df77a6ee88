"""Which callbacks of Keras are called, and which may read weights."""

from __future__ import annotations

import sys
from types import ModuleType

import keras
import pytest

from parallax_runner.api.fit_callbacks import FitCalls, reads_weights, usable
from parallax_runner.errors import ConfigError


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


def test_a_rate_that_returns_to_its_first_value_is_told() -> None:
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    rates = keras.callbacks.LearningRateScheduler(lambda epoch: [0.5, 0.25, 0.5][epoch])
    params = {"epochs": 3, "steps": 1, "verbose": 0}
    calls = FitCalls(model, [rates], params=params, logs=dict, validation_logs=lambda _: {}, load=lambda: None)
    told = []
    for epoch in range(3):
        calls.begin(epoch)
        told.append(calls.learning_rate)
        calls.end(epoch, epoch + 1)
    assert told == [0.5, 0.25, 0.5]
