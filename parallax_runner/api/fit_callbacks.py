"""Calls Keras' callbacks in the driver process, between epochs and never within an epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from parallax_runner.errors import ConfigError

log = logging.getLogger(__name__)

# Callbacks whose batch methods can be skipped. TensorBoard needs its batch methods only for its profiler.
ALLOWED = ("TensorBoard", "History")
# For each callback that is not called, the feature that replaces it.
REPLACED = {
    "ModelCheckpoint": "ckpt.save_steps and ckpt.save_secs write checkpoints, and the best one is kept",
    "BackupAndRestore": "a run resumes from its last checkpoint automatically (train.max_restarts, ckpt.resume)",
    "TerminateOnNaN": "train.on_nan=stop ends the run if a loss is NaN",
    "ProgbarLogger": "the run itself shows the progress",
}
# Callbacks that do not read the weights.
READ_NO_WEIGHTS = (
    "CSVLogger",
    "EarlyStopping",
    "History",
    "LearningRateScheduler",
    "ReduceLROnPlateau",
    "TensorBoard",
)


def usable(callbacks: Iterable[Any]) -> tuple[list[Any], list[str]]:
    """Returns the callbacks to call and, for each omitted callback, a message that names its replacement.

    Raises ConfigError for a callback that must be called within an epoch.
    """
    kept, notes = [], []
    for callback in callbacks:
        kind = type(callback).__name__
        if is_keras_own(callback) and kind in REPLACED:
            notes.append(f"callbacks: {kind} is not called: {REPLACED[kind]}")
            continue
        methods = batch_methods(callback)
        if methods and not (is_keras_own(callback) and kind in ALLOWED):
            raise ConfigError(
                f"callbacks: {kind} overrides {', '.join(methods)}, and callbacks are called only between epochs: "
                "within an epoch, ranks do not wait for the driver. Use on_epoch_end and a smaller steps_per_epoch"
            )
        kept.append(callback)
    return kept, notes


def is_keras_own(callback: Any) -> bool:
    """Returns whether a callback's class is defined by Keras itself, rather than derived from a Keras class."""
    return type(callback).__module__.split(".")[0] == "keras"


def batch_methods(callback: Any) -> list[str]:
    """Returns the names of the callback's methods that Keras calls for each batch."""
    import keras

    names = [name for name in dir(keras.callbacks.Callback) if "_batch_" in name and name.startswith("on_")]
    own = vars(callback)
    return [name for name in names if name in own or getattr(type(callback), name) is not _base(name)]


def _base(name: str) -> Any:
    import keras

    return getattr(keras.callbacks.Callback, name)


def reads_weights(callback: Any) -> bool:
    """Returns whether a callback might read the model's weights at the end of an epoch."""
    if not is_keras_own(callback) or type(callback).__name__ not in READ_NO_WEIGHTS:
        return True
    return bool(getattr(callback, "restore_best_weights", False) or getattr(callback, "histogram_freq", 0))


class FitCalls:
    """Calls the callbacks and applies their requests. `logs` returns the metrics of an epoch; `load` loads the weights
    of the newest checkpoint into the model."""

    def __init__(
        self,
        model: Any,
        callbacks: Sequence[Any],
        *,
        params: Mapping[str, Any],
        logs: Callable[[int], dict[str, float]],
        load: Callable[[], None],
    ) -> None:
        import keras

        self._model, self._logs, self._load = model, logs, load
        self._reads_weights = any(map(reads_weights, callbacks))
        self._list = keras.callbacks.CallbackList(list(callbacks), add_history=True, model=model, **params)
        self._started = False
        self._rate = rate_of(model)
        model.stop_training = False

    @property
    def history(self) -> Any:
        """Keras' History."""
        return self._model.history

    @property
    def stops(self) -> bool:
        """Whether a callback has requested to stop training."""
        return bool(self._model.stop_training)

    @property
    def learning_rate(self) -> float | None:
        """The model's learning rate if a callback has changed it, else None."""
        rate = rate_of(self._model)
        return None if rate == self._rate else rate

    def begin(self, epoch: int) -> None:
        """Calls the callbacks before an epoch."""
        if not self._started:
            self._started = True
            self._list.on_train_begin()
        self._list.on_epoch_begin(epoch)

    def end(self, epoch: int) -> None:
        """Calls the callbacks after an epoch."""
        rate = rate_of(self._model)
        if self._reads_weights:
            self._load()
            set_rate(self._model, rate)  # a callback may have changed the rate since the checkpoint
        logs = self._logs(epoch)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in logs.items())
        log.info("epoch %d: %s", epoch + 1, shown)
        self._list.on_epoch_end(epoch, logs)

    def finish(self) -> None:
        """Calls the callbacks after the training, when the model has its final weights."""
        if self._started:
            self._list.on_train_end()


def rate_variable(model: Any) -> str | None:
    """Returns the learning rate's name in checkpoints, or None if the learning rate is a schedule."""
    import keras

    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        return None
    return getattr(optimizer._learning_rate, "path", None)


def rate_of(model: Any) -> float | None:
    """Returns the current learning rate, or None if the learning rate is a schedule."""
    return None if rate_variable(model) is None else float(model.optimizer.learning_rate)


def set_rate(model: Any, rate: float | None) -> None:
    """Sets the learning rate. Does nothing if `rate` is None, which means that the learning rate is a schedule."""
    if rate is not None:
        model.optimizer.learning_rate = rate
