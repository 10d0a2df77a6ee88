"""A Keras script that writes what its callbacks saw: `train_as_keras.py CASE COMM FOLDER`; COMM «plain» is plain Keras.

Each case is a list of calls of `fit`. All numbers are float64, so that only the order of additions differs.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import parallax_runner

if importlib.util.find_spec("tensorboard") is None:
    sys.path.append(str(Path(__file__).parent / "without_tensorboard"))
ROWS, BATCH = 200, 16
case, comm, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
keras.config.set_floatx("float64")
keras.utils.set_random_seed(7)
draws = np.random.default_rng(7)
count = 12 * BATCH
# Each id occurs once in a batch, because plain Keras does not merge repeated ones.
ids = np.concatenate([draws.permutation(ROWS)[:BATCH] for _ in range(12)]).astype("int32")
dense = draws.normal(size=(count, 3))
labels = ((ids % 2 + dense[:, 0]) > 0.5).astype("int64")[:, None]
train = {"id": ids[: 8 * BATCH], "dense": dense[: 8 * BATCH]}, labels[: 8 * BATCH]
held_back = {"id": ids[8 * BATCH : -5], "dense": dense[8 * BATCH : -5]}, labels[8 * BATCH : -5]

inputs = {"id": keras.Input([], dtype="int32", name="id"), "dense": keras.Input([3], name="dense")}
joined = keras.layers.Concatenate()([keras.layers.Embedding(ROWS, 4, name="table")(inputs["id"]), inputs["dense"]])
hidden = keras.layers.Dense(8, activation="tanh", name="hidden")(joined)
model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid", name="top")(hidden))
optimizers = {
    "arguments": lambda: keras.optimizers.Adagrad(0.2, use_ema=True, ema_momentum=0.9),
    "accumulation": lambda: keras.optimizers.Adam(0.05, gradient_accumulation_steps=3, global_clipnorm=0.1),
}
model.compile(
    optimizers.get(case, lambda: keras.optimizers.Adagrad(0.2))(),
    "binary_crossentropy",
    metrics=[keras.metrics.AUC(name="auc")],
    weighted_metrics=["accuracy"],
)


def state() -> list[Any]:
    """Returns the learning rate, the number of steps and the absolute sum of each variable of the model."""
    rate, steps = float(model.optimizer.learning_rate), int(model.optimizer.iterations)
    return [rate, steps, [float(np.abs(array).sum()) for array in model.get_weights()]]


class Own(keras.callbacks.Callback):
    """Records each call, with what the callback can see in it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[Any]] = []

    def _note(self, name: str, logs: Any, *more: Any) -> None:
        self.calls.append([name, *more, {key: float(value) for key, value in (logs or {}).items()}, state()])

    def on_train_begin(self, logs: Any = None) -> None:
        """Records the parameters too."""
        self._note("train_begin", logs, self.params["epochs"], self.params["steps"])

    def on_train_end(self, logs: Any = None) -> None:
        """Records the call."""
        self._note("train_end", logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Records the call."""
        self._note("epoch_begin", logs, epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Records the call."""
        self._note("epoch_end", logs, epoch)

    def on_test_begin(self, logs: Any = None) -> None:
        """Records the call."""
        self._note("test_begin", logs)

    def on_test_end(self, logs: Any = None) -> None:
        """Records the call."""
        self._note("test_end", logs)


class StopsBefore(keras.callbacks.Callback):
    """Stops the training before an epoch, or before the first epoch if there is no number."""

    def __init__(self, epoch: int | None) -> None:
        super().__init__()
        self.epoch = epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Stops, or does nothing."""
        self.model.stop_training = self.epoch is None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Stops before its epoch."""
        if epoch == self.epoch:
            self.model.stop_training = True


def slower(epoch: int, rate: float) -> float:
    """Returns the learning rate of an epoch."""
    return rate * 0.9 if epoch == 1 else rate


def repeated() -> tf.data.Dataset:
    """Returns endless batches of all examples, with weights."""
    weights = draws.uniform(0.5, 2.0, len(labels))
    features = {"id": ids, "dense": dense}
    return tf.data.Dataset.from_tensor_slices((features, labels, weights)).repeat().batch(BATCH)


own, told = Own(), []
# The workers must draw the same examples.
drawn = tf.data.Dataset.from_tensor_slices(held_back).shuffle(60, seed=5, reshuffle_each_iteration=False)
lines = keras.callbacks.LambdaCallback(
    on_epoch_begin=lambda epoch, logs: told.append(["begin", epoch]),
    on_epoch_end=lambda epoch, logs: told.append(["end", epoch, logs["val_loss"]]),
)
CASES = {
    # Its callback does not read weights.
    "accumulation": [{"epochs": 3, "callbacks": [keras.callbacks.CSVLogger(str(folder / "accumulated.csv"))]}],
    "callbacks": [
        {
            "epochs": 6,
            "callbacks": [
                keras.callbacks.LearningRateScheduler(slower),
                keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.05),
                keras.callbacks.CSVLogger(str(folder / "first.csv")),
                keras.callbacks.TensorBoard(str(folder / "events")),
                own,
                lines,
            ],
        },
        {
            "epochs": 20,
            "initial_epoch": 6,
            # Its own weights are those of the epoch from which two others have brought less than min_delta.
            "callbacks": [
                keras.callbacks.EarlyStopping("val_loss", min_delta=0.02, patience=2, restore_best_weights=True),
                keras.callbacks.CSVLogger(str(folder / "second.csv"), separator=";"),
                own,
            ],
        },
    ],
    "arguments": [
        {
            "epochs": 5,
            "initial_epoch": 1,
            "steps_per_epoch": 4,
            "class_weight": {0: 0.5, 1: 2.0},
            "validation_freq": 2,
            "callbacks": own,
        },
        {
            "epochs": 3,
            "sample_weight": draws.uniform(0.5, 2.0, 8 * BATCH),
            "validation_data": (*held_back, draws.uniform(0.5, 2.0, len(held_back[1]))),
            "validation_freq": 2,
            "callbacks": [own],
        },
        {
            "x": repeated(),
            "y": None,
            "batch_size": None,
            "epochs": 2,
            "steps_per_epoch": 9,
            "validation_data": held_back,
        },
        {
            "x": repeated(),
            "y": None,
            "batch_size": None,
            "epochs": 2,
            "steps_per_epoch": 5,
            "validation_data": drawn.take(40).batch(10),
        },
    ],
    "validation": [
        {
            "epochs": 2,
            "validation_data": tf.data.Dataset.from_tensor_slices(held_back).batch(10),
            "validation_steps": 4,
            "verbose": 2,
        },
        {"epochs": 1, "validation_batch_size": 7, "validation_steps": 3, "verbose": 0},
    ],
    "stops": [
        {"epochs": 4, "validation_freq": [2, 4], "callbacks": [own, StopsBefore(3)]},
        {"epochs": 7, "initial_epoch": 3, "validation_freq": [5, 7], "callbacks": [StopsBefore(5), own]},
        {"epochs": 2, "callbacks": [StopsBefore(None), own]},
    ],
}
left: dict[str, Any] = {"histories": [], "epochs": []}
for call in CASES[case]:
    given = {"x": train[0], "y": train[1], "batch_size": BATCH, "validation_data": held_back, "shuffle": False, **call}
    print("call", file=sys.stderr, flush=True)
    if comm == "plain":
        history = model.fit(**given)
    else:
        history = parallax_runner.fit(model, **given, comm=comm, workers=2, overrides=["tracking=off"])
    left["histories"].append({name: [float(value) for value in each] for name, each in history.history.items()})
    left["epochs"].append(list(history.epoch))
left |= {
    "calls": own.calls,
    "told": told,
    "weights": {variable.path: variable.numpy().tolist() for variable in model.variables},
    "optimizer": {variable.path: variable.numpy().tolist() for variable in model.optimizer.variables},
    "evaluated": model.evaluate(*held_back, verbose=0, return_dict=True),
    "predicted": model.predict(held_back[0], verbose=0).tolist(),
}
# Plain Keras continues from the trained model.
continued = model.fit(*train, batch_size=BATCH, epochs=2, validation_data=held_back, shuffle=False, verbose=0)
left["continued"] = {name: [float(value) for value in each] for name, each in continued.history.items()}
with open(folder / "left.json", "w", encoding="utf-8") as file:
    json.dump(left, file)
