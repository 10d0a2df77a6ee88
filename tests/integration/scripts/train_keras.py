"""A Keras script: trains with plain `fit`, or with ours, and writes the results that the test compares.

`train_keras.py '{"comm": null, "epochs": [3], …}'`: comm null is plain Keras; a number of epochs for each call of fit.
"""

from __future__ import annotations

import json
import sys

import keras
import numpy as np

import parallax_runner

ROWS = 200
asked = json.loads(sys.argv[1])
keras.utils.set_random_seed(7)
draws = np.random.default_rng(7)
examples = {
    # Each id occurs once in a batch, because plain Keras does not merge repeated ones.
    "id": np.concatenate([draws.permutation(ROWS)[:32] for _ in range(12)]).astype("int32"),
    "dense": draws.normal(size=(384, 3)).astype("float32"),
}
labels = (examples["id"] % 2)[:, None].astype("float32")
train = {name: array[:256] for name, array in examples.items()}
# The last batch of a validation is smaller.
held_back = ({name: array[256:371] for name, array in examples.items()}, labels[256:371])

inputs = {"id": keras.Input([], dtype="int32", name="id"), "dense": keras.Input([3], name="dense")}
joined = keras.layers.Concatenate()([keras.layers.Embedding(ROWS, 4, name="table")(inputs["id"]), inputs["dense"]])
hidden = keras.layers.Dense(8, activation="tanh", name="hidden")(joined)
model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid", name="top")(hidden))
optimizer = keras.optimizers.Adagrad(0.1, **asked.get("clip", {}))
model.compile(optimizer, "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc"), "accuracy"])


def halved(epoch: int, rate: float) -> float:
    """Returns the learning rate of an epoch."""
    return rate / 2 if epoch == 1 else rate


seen, called = [], 0
history = None
for epochs in asked["epochs"]:
    callbacks = [
        keras.callbacks.LearningRateScheduler(halved),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: seen.append(
                [epoch, dict(logs), float(np.abs(model.get_weights()[0]).sum())]
            )
        ),
    ]
    if asked.get("patience") is not None:
        stop = keras.callbacks.EarlyStopping("loss", min_delta=100.0, patience=asked["patience"])
        callbacks.append(stop)
    kept = {"epochs": epochs, "validation_data": held_back, "shuffle": False, "callbacks": callbacks}
    if asked["comm"] is None:
        history = model.fit(train, labels[:256], batch_size=32, verbose=0, **kept)
    else:
        overrides = ["tracking=off", *asked.get("overrides", ())]
        kept |= {"workers": asked.get("workers", 2), "overrides": overrides}
        history = parallax_runner.fit(model, train, labels[:256], batch_size=32, comm=asked["comm"], **kept)
    called += 1

assert history is not None
left = {
    "history": history.history,
    "epoch": list(history.epoch),
    "seen": seen,
    "weights": {variable.path: variable.numpy().tolist() for variable in model.variables},
    "optimizer": {variable.path: variable.numpy().tolist() for variable in model.optimizer.variables},
    "evaluated": model.evaluate(*held_back, verbose=0, return_dict=True),
    "calls": called,
}
with open(asked["left"], "w", encoding="utf-8") as file:
    json.dump(left, file)
