"""Calls Keras' callbacks in the driver process, between epochs and never within an epoch."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from parallax_runner.api.callback_state import BestWeights
from parallax_runner.api.fit_result import as_json
from parallax_runner.errors import ConfigError

log = logging.getLogger(__name__)

LINE_PER_EPOCH = 2  # a value of `verbose`
# Callbacks whose batch methods can be skipped. TensorBoard needs its batch methods only for its profiler.
ALLOWED = ("TensorBoard", "History")
# Maps each callback that is not called to the feature that replaces it.
REPLACED = {
    "ModelCheckpoint": "ckpt.save_steps and ckpt.save_secs write checkpoints, and the best one is kept",
    "BackupAndRestore": "a run resumes from its last checkpoint automatically (train.max_restarts, ckpt.resume)",
    "TerminateOnNaN": "train.on_nan=stop ends the run if a loss is NaN",
    "ProgbarLogger": "the run itself shows the progress",
}
# Maps each callback that would silently have no effect to the reason and the remedy.
REFUSED = {
    "SwapEMAWeights": (
        "swaps the weights of the model in this process, but the workers validate their own copies: omit it; with "
        "use_ema=True, the model has the averaged weights when fit returns, as in Keras"
    ),
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

# If one of these attributes is set, even a callback in READ_NO_WEIGHTS reads the weights.
READS_WEIGHTS_IF = ("restore_best_weights", "histogram_freq", "embeddings_freq")


def usable(callbacks: Iterable[Any]) -> tuple[list[Any], list[str]]:
    """Returns the callbacks to call and, for each omitted callback, a message that names its replacement.

    Raises ConfigError for a callback that must be called within an epoch, or that cannot work here.
    """
    kept, notes = [], []
    for callback in callbacks:
        kind = type(callback).__name__
        if is_keras_own(callback) and kind in REPLACED:
            notes.append(f"callbacks: {kind} is not called: {REPLACED[kind]}")
        else:
            _check_usable(callback)
            kept.append(callback)
    return kept, notes


def _check_usable(callback: Any) -> None:
    kind, is_own = type(callback).__name__, is_keras_own(callback)
    if is_own and kind in REFUSED:
        raise ConfigError(f"callbacks: {kind} {REFUSED[kind]}")
    if is_own and kind == "TensorBoard" and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "callbacks: TensorBoard needs the package tensorboard, which is not installed: install it "
            "(pip install tensorboard), or omit the callback"
        )
    if is_own and kind in ALLOWED:
        return
    methods = batch_methods(callback)
    if methods:
        raise ConfigError(
            f"callbacks: {kind} overrides {', '.join(methods)}, but callbacks are called only between epochs: "
            "within an epoch, ranks do not wait for the driver. Use on_epoch_end and a smaller steps_per_epoch"
        )


def is_keras_own(callback: Any) -> bool:
    """Returns whether a callback's class is defined by Keras itself, rather than derived from a Keras class."""
    return type(callback).__module__.split(".")[0] == "keras"


def batch_methods(callback: Any) -> list[str]:
    """Returns the names of the per-batch methods that the callback overrides."""
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
    return any(getattr(callback, name, False) for name in READS_WEIGHTS_IF)


class FitCalls:
    """Calls the callbacks, and reports whether they have requested a stop and which learning rates they have set.

    `logs` returns the training metrics of an epoch. `validation_logs` returns the validation metrics of an epoch, or an
    empty dict if the epoch has no validation. `load` loads the weights of the newest checkpoint into the model. `best`
    stores the best weights of `EarlyStopping`.
    """

    def __init__(
        self,
        model: Any,
        callbacks: Sequence[Any],
        *,
        params: Mapping[str, Any],
        logs: Callable[[], dict[str, float]],
        validation_logs: Callable[[int], dict[str, float]],
        load: Callable[[], object],
        best: BestWeights,
    ) -> None:
        import keras

        from parallax_runner.graph.traced.model_variables import optimizers_by_rate

        self._callbacks, self._best = list(callbacks), best
        self._model, self._logs, self._validation_logs, self._load = model, logs, validation_logs, load
        self._reads_weights = any(map(reads_weights, callbacks))
        self._list = keras.callbacks.CallbackList(self._callbacks, add_history=True, model=model, **params)
        self._started = False
        self._last_logs: dict[str, float] | None = None
        self._optimizers = optimizers_by_rate(model)
        self._steps_before = int(_counter_of(model.optimizer)) if _is_used(model.optimizer) else 0
        self._epochs, self._verbose = params["epochs"], params["verbose"]
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
    def learning_rates(self) -> dict[str, float]:
        """The learning rates of the model's optimizers, which callbacks may have changed, by the name of their
        variable. Schedules are left out."""
        return {name: float(optimizer.learning_rate) for name, optimizer in self._optimizers.items()}

    def set_learning_rates(self, rates: Mapping[str, float]) -> None:
        """Sets the learning rates whose variables have these names."""
        for name in rates.keys() & self._optimizers.keys():
            self._optimizers[name].learning_rate = rates[name]

    def state(self) -> dict[str, Any]:
        """Returns the history and the state of Keras' own callbacks, for a checkpoint. Raises CheckpointError if best
        weights cannot be written."""
        if not self._started:
            return {}
        return {
            "history": as_json(self.history.history),
            "epochs": list(self.history.epoch),
            "states": self._best.states_of(self._callbacks),
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Calls the callbacks' `on_train_begin`, then restores what `state` has returned in another process. Raises
        CheckpointError if best weights cannot be read."""
        self._begin_training()
        if not state:
            return
        self.history.history = {name: list(values) for name, values in state["history"].items()}
        self.history.epoch = list(state["epochs"])
        self._best.restore(self._callbacks, state["states"])

    def begin(self, epoch: int) -> None:
        """Calls the callbacks before an epoch."""
        self._begin_training()
        self._list.on_epoch_begin(epoch)

    def end(self, epoch: int, step: int) -> None:
        """Calls the callbacks after an epoch and its validation. `step` is the number of steps that this run has
        completed."""
        if self._reads_weights:
            self._load_weights()
        elif _is_used(self._model.optimizer):  # TensorBoard reads the number of steps
            _counter_of(self._model.optimizer).assign(self._steps_before + step)
        logs, validation_logs = self._logs(), self._validation_logs(epoch)
        if validation_logs:
            self._list.on_test_begin()
            self._list.on_test_end(validation_logs)
        logs |= {f"val_{name}": value for name, value in validation_logs.items()}
        shown = ", ".join(f"{name} {value:.4g}" for name, value in logs.items())
        log.info("epoch %d: %s", epoch + 1, shown)
        if self._verbose == LINE_PER_EPOCH:
            print(f"epoch {epoch + 1}/{self._epochs}: {shown}", file=sys.stderr, flush=True)
        self._list.on_epoch_end(epoch, logs)
        self._last_logs = logs

    def _load_weights(self) -> None:
        rates = self.learning_rates
        self._load()
        self.set_learning_rates(rates)  # a callback may have changed a rate since the checkpoint

    def finish(self) -> None:
        """Loads the final weights into the model, then calls the callbacks' `on_train_end`. If the run resumed from a
        checkpoint of the last step, no epoch was run before this call."""
        self._begin_training()
        self._load_weights()
        if _is_used(self._model.optimizer):
            self._model.optimizer.finalize_variable_values(self._model.trainable_weights)  # averages if use_ema=True
        self._list.on_train_end(self._last_logs)

    def _begin_training(self) -> None:
        if not self._started:
            self._started = True
            self._list.on_train_begin()


def _counter_of(optimizer: Any) -> Any:
    """Returns the variable that counts the steps of an optimizer. If it accumulates gradients, its `iterations` are a
    quotient of this count."""
    return optimizer._iterations if optimizer.gradient_accumulation_steps else optimizer.iterations


def _is_used(optimizer: Any) -> bool:
    """Returns whether the optimizer of a model has been built. A `train_step` can use other optimizers alone."""
    return optimizer is not None and optimizer.built
