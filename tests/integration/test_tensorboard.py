"""The scalars that Keras' TensorBoard callback writes, with the real package.

The package is not among the locked ones, because TensorFlow imports it in every process where it is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tensorboard==2.21.0", "tensorboard-data-server==0.7.2", "markdown==3.11.3")

SCRIPT = """
import json

import keras
import numpy as np

import parallax_runner

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1, "sigmoid")])
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
history = parallax_runner.fit(
    *(model, x, y), batch_size=12, epochs=3, validation_data=(x, y), workers=2, comm="sharded",
    callbacks=[keras.callbacks.TensorBoard("board")], overrides=["tracking=off"],
)
json.dump(history.history, open("history.json", "w"))
"""

READ = """
import json, sys
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

found = {}
for part in ("train", "validation"):
    events = EventAccumulator(f"board/{part}", size_guidance={"tensors": 0})
    events.Reload()
    for tag in events.Tags()["tensors"]:
        if tag.startswith("epoch_"):
            entries = [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]
            found[f"{part}/{tag}"] = entries
json.dump(found, sys.stdout)
"""


def test_it_has_the_scalars_of_the_history(tmp_path: Path) -> None:
    uv = subprocess.run([ROOT / "scripts/setup", "--uv"], check=True, capture_output=True, text=True, timeout=120)
    install = [
        uv.stdout.strip(),
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        tmp_path / "packages",
        *PACKAGES,
    ]
    subprocess.run(install, check=True, timeout=300)
    env = os.environ | {"PYTHONPATH": f"{tmp_path / 'packages'}:{ROOT}"}
    (tmp_path / "script.py").write_text(SCRIPT)
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, check=True, timeout=300)
    read = [sys.executable, "-c", READ]
    output = subprocess.run(read, cwd=tmp_path, env=env, check=True, capture_output=True, text=True, timeout=120).stdout
    found = json.loads(output)
    history = json.loads((tmp_path / "history.json").read_text())
    expected = {
        f"{'validation' if name.startswith('val_') else 'train'}/epoch_{name.removeprefix('val_')}": values
        for name, values in history.items()
    }
    assert expected.keys() == {
        f"{part}/epoch_{name}" for part in ("train", "validation") for name in ("loss", "accuracy")
    }
    assert found.keys() == {*expected, "train/epoch_learning_rate"}
    for name, values in expected.items():
        assert [step for step, _ in found[name]] == [0, 1, 2]
        assert all(abs(ours - theirs) < 1e-6 for (_, ours), theirs in zip(found[name], values, strict=True)), name
    assert all(abs(rate - 0.01) < 1e-8 for _, rate in found["train/epoch_learning_rate"])
