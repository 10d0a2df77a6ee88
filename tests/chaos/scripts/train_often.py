"""Trains a small Keras model by many calls of `fit`: `train_often.py CALLS EPOCHS STEPS`.

Prints a JSON list with what this process uses after each call: resident bytes, open files, threads.
"""

from __future__ import annotations

import json
import sys

import keras
import numpy as np
import psutil

import parallax_runner

calls, epochs, steps = map(int, sys.argv[1:])
BATCH = 8
keras.utils.set_random_seed(3)
ids = np.random.default_rng(1).integers(0, 500, size=(steps * BATCH, 4)).astype("int32")
labels = (ids.sum(1) % 2).astype("float32")
model_input = keras.Input([4], dtype="int32")
hidden = keras.layers.Flatten()(keras.layers.Embedding(500, 8)(model_input))
model = keras.Model(model_input, keras.layers.Dense(1, activation="sigmoid")(hidden))
model.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy", metrics=["accuracy"])
used = []
for _ in range(calls):
    parallax_runner.fit(
        model,
        ids,
        labels,
        workers=2,
        comm="sharded",
        batch_size=BATCH,
        epochs=epochs,
        validation_data=(ids[:64], labels[:64]),
        verbose=0,
        overrides=["run_dir=run", "train.log_every=10", "ckpt.save_steps=10"],
    )
    process = psutil.Process()
    used.append([process.memory_info().rss, process.num_fds(), process.num_threads()])
print(json.dumps(used))
