"""A Keras script: trains with metrics of groups, and leaves the history and what plain Keras predicts.

`train_groups.py COMM WORKERS LEFT`: the file LEFT gets the results.
"""

from __future__ import annotations

import json
import sys

import keras
import numpy as np

import parallax_runner

USERS, ROWS, HELD_BACK = 11, 96, 70
METRICS = ["gauc", "group_log_loss", "group_recall_at_3", "calibration"]
comm, workers, left = sys.argv[1], int(sys.argv[2]), sys.argv[3]
keras.utils.set_random_seed(7)


def rows(count: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Returns the features, the labels and the weights of examples."""
    draws = np.random.default_rng(seed)
    # Keras would take «group», which is no input, for another one: it is the first key of all.
    x = {"group": draws.integers(0, USERS, count), "wide": draws.normal(size=(count, 4)).astype("float32")}
    chosen = (x["wide"][:, 0] + draws.normal(size=count) > 0).astype("float32")
    return x, chosen[:, None], draws.integers(0, 3, count).astype("float32")


inputs = {"wide": keras.Input([4], name="wide")}
score = keras.layers.Dense(1, activation="sigmoid", name="top")(inputs["wide"])
model = keras.Model(inputs, score)
model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
train, held_back = rows(ROWS, 1), rows(HELD_BACK, 2)
stop = keras.callbacks.EarlyStopping("val_gauc", mode="max", patience=1, min_delta=10.0)
history = parallax_runner.fit(
    model,
    train[0],
    train[1],
    sample_weight=train[2],
    batch_size=16,
    epochs=5,
    validation_data=held_back,
    validation_metrics=METRICS,
    groups="group",
    callbacks=[stop],
    workers=workers,
    comm=comm,
    overrides=["tracking=off"],
)
result = {
    "history": history.history,
    "predicted": model.predict({"wide": held_back[0]["wide"]}, verbose=0)[:, 0].tolist(),
    "group": held_back[0]["group"].tolist(),
    "label": held_back[1][:, 0].tolist(),
    "weight": held_back[2].tolist(),
}
with open(left, "w", encoding="utf-8") as file:
    json.dump(result, file)
