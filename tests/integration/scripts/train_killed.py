"""A Keras script that kills its workers: `train_killed.py '{"comm": null, "left": …, "kills": …}'`.

`kills` is a list of [rank, file]: the worker of this rank is killed, once, as soon as the file exists. The callback
writes the file `begin-N` before epoch N. `stops` is a list of epochs: at the end of each of them, the
callback sends SIGTERM to the driver, once. Until the file `slow_until` exists, each epoch begins a second late. With
`counts`, two of Keras' callbacks count epochs without improvement.
With comm null, plain Keras trains.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import tensorflow as tf

import parallax_runner

asked = json.loads(sys.argv[1])


def kill_when(path: Path, rank: int) -> None:
    """Kills the worker of this rank when the file exists, unless an earlier process of the script has done so."""
    killed = path.with_name(f"{path.name}.killed")
    while not path.exists():
        time.sleep(0.002)
    try:
        killed.touch(exist_ok=False)
    except FileExistsError:
        return
    worker_of(rank).kill()


def worker_of(rank: int) -> psutil.Process:
    """Returns the process of a worker of the run in the folder `run`."""
    command = ["-m", "parallax_runner.worker", str(Path("run").resolve())]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it may end while it is looked at
            if process.cmdline()[-len(command) :] == command and process.environ().get("OMPI_COMM_WORLD_RANK") == str(
                rank
            ):
                return process
    raise AssertionError(f"there is no worker {rank}")


for rank, name in asked["kills"]:
    threading.Thread(target=kill_when, args=(Path(name), rank), daemon=True).start()

ROWS, BATCH = 200, 12
keras.config.set_floatx("float64")
keras.utils.set_random_seed(7)
draws = np.random.default_rng(7)
# Each id occurs once in a batch, because plain Keras does not merge repeated ones.
ids = np.concatenate([draws.permutation(ROWS)[:BATCH] for _ in range(12)]).astype("int32")
dense = draws.normal(size=(len(ids), 3))
labels = ((ids % 2 + dense[:, 0]) > 0.5).astype("int64")[:, None]


def slowly(features: Any, label: Any) -> Any:
    """Takes some milliseconds for an example, so that a kill comes in the middle."""
    zero = tf.reduce_sum(tf.linalg.matmul(tf.ones([400, 400]), tf.ones([400, 400]))) * 0
    return {"id": features["id"], "dense": features["dense"] + tf.cast(zero, tf.float64)}, label


examples = tf.data.Dataset.from_tensor_slices(({"id": ids, "dense": dense}, labels))
cut = 8 * BATCH
# Whole batches are shuffled, so each id still occurs once in a batch.
train = examples.take(cut).map(slowly).batch(BATCH).shuffle(8, seed=3, reshuffle_each_iteration=False)
validation = examples.skip(cut).map(slowly).batch(BATCH)

inputs = {"id": keras.Input([], dtype="int32", name="id"), "dense": keras.Input([3], name="dense")}
joined = keras.layers.Concatenate()([keras.layers.Embedding(ROWS, 4, name="table")(inputs["id"]), inputs["dense"]])
hidden = keras.layers.Dense(8, activation="tanh", name="hidden")(joined)
model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid", name="top")(hidden))
model.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc"), "accuracy"])

seen: list[Any] = []


class Own(keras.callbacks.Callback):
    """Records each call and the sum of the weights, and writes the file of each epoch."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Records the call."""
        seen.append(["train begin"])

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Records the call, and gives the workers time to find the file."""
        seen.append(["begin", epoch])
        if asked["comm"] is not None:
            Path(f"begin-{epoch}").touch()
            time.sleep(0.3)
        if not Path(asked.get("slow_until", ".")).exists():
            time.sleep(1.0)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Records the call with the logs and the weights."""
        seen.append(["end", epoch, dict(logs), [float(np.abs(each).sum()) for each in self.model.get_weights()]])
        stopped = Path(f"stopped-{epoch}")
        if epoch in asked.get("stops", []) and not stopped.exists():
            stopped.touch()
            os.kill(os.getpid(), signal.SIGTERM)

    def on_train_end(self, logs: Any = None) -> None:
        """Records the call."""
        seen.append(["train end", dict(logs or {})])


# Each rate follows from the last one, so a run that goes on must begin with the rate of its checkpoint.
rates = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)
callbacks = [rates, Own()]
if asked.get("counts"):  # no epoch is better than the first one by this much
    counting: dict[str, Any] = {"monitor": "val_loss", "min_delta": 10.0}
    callbacks.append(keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=2, **counting))
    callbacks.append(keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True, **counting))
kept = {"epochs": asked["epochs"], "validation_data": validation, "callbacks": callbacks}
kept |= asked.get("arguments", {})
if asked["comm"] is None:
    history = model.fit(train, verbose=0, **kept)
else:
    kept |= {"workers": asked["workers"], "comm": asked["comm"], "overrides": ["tracking=off", *asked["overrides"]]}
    history = parallax_runner.fit(model, train, **kept)
left = {
    "history": history.history,
    "epoch": list(history.epoch),
    "seen": seen,
    "weights": {variable.path: variable.numpy().tolist() for variable in model.variables},
    "optimizer": {variable.path: variable.numpy().tolist() for variable in model.optimizer.variables},
}
Path(asked["left"]).write_text(json.dumps(left))
