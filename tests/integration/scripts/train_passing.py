"""Trains tables whose keys come and go by `parallax_runner.fit`: `train_passing.py WORKERS OVERRIDES…`."""

from __future__ import annotations

import sys

import parallax_runner
from tests.integration.growing_models import BATCH, TRAINING_EXAMPLES, load_passing_users, make_two_passing

EPOCHS = 2

model = make_two_passing("adagrad")
# Half of the examples, so that 20 steps are two epochs.
batch = load_passing_users(5).train_batch(0, TRAINING_EXAMPLES // EPOCHS)
x = {name: batch[name] for name in ("item", "user")}
given = {"workers": int(sys.argv[1]), "comm": "sharded", "batch_size": BATCH, "epochs": EPOCHS, "shuffle": False}
parallax_runner.fit(model, x, batch["y"], **given, overrides=["tracking=off", *sys.argv[2:]])
