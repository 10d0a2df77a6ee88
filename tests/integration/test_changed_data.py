"""Data that changed between two runs, and data that differs between the processes of one run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.integration.runs import Run, launch
from tests.integration.test_fit import run as run_script

DATA = """
import numpy as np
from parallax_runner.data.arrays import ArrayDataset


def load(*, path, seed, split_seed):
    rows = np.load(path)
    rows = rows[np.random.default_rng(split_seed).permutation(len(rows))].astype("float32")
    part = lambda x: {"x": x, "y": 10 * x - 5}
    return ArrayDataset(train=part(rows[64:]), validation=part(rows[:64]), words_per_example=None, seed=seed)
"""
CHOICE = "_target_: mydata.load\npath: ???\nsplit_seed: 1\nseed: ${train.seed}\nbatch_size: 8\n"
MORE = ("model=simple", "optimizer=gradient_descent", "data=mine", "tracking=off", "cluster.workers=2", "comm=mpi")
FIT = """
import sys

import keras
import numpy as np

import parallax_runner

x = np.arange(float(sys.argv[1])).reshape(-1, 1) / 100
model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
model.compile("sgd", "mse")
parallax_runner.fit(
    model, x, 2 * x, workers=1, comm="local", batch_size=8, epochs=int(sys.argv[2]), steps_per_epoch=4,
    overrides=["run_dir=run", "tracking=off", *sys.argv[3:]],
)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "conf" / "data" / "mine.yaml").write_text(CHOICE)
    (tmp_path / "mydata.py").write_text(DATA)
    draw = np.random.default_rng(3)
    np.save(tmp_path / "day1.npy", draw.uniform(-1, 1, 1000))
    np.save(tmp_path / "day2.npy", draw.uniform(-1, 1, 1200))
    return tmp_path


def train(project: Path, name: str, *more: str) -> Run:
    return launch("--config-dir", "conf", *MORE, *more, cwd=project, name=name, python_path=project)


def test_new_data_is_refused_and_then_begun_at_its_first_example(project: Path) -> None:
    first = train(project, "day1", "data.path=day1.npy", "train.steps=10").expect_success()
    assert first.sidecar(10)["examples"] == 160
    second = ("data.path=day2.npy", "train.steps=14", f"ckpt.resume={first.run_dir}")
    refused = train(project, "day2", *second)
    assert refused.exit_status == 1 and "starting" not in refused.stderr
    (told,) = [line for line in refused.stderr.splitlines() if line.startswith("parallax_runner: ")]
    assert "the training data has changed since checkpoint" in told and "examples: 1136 instead of 936" in told
    begun = train(project, "day2", *second, "ckpt.position=start").expect_success()
    assert (begun.summary["first_step"], begun.sidecar(14)["examples"]) == (10, 4 * 16)
    # The same data at another path goes on, at the position in the second day's data.
    (project / "day2.npy").rename(project / "moved.npy")
    more = train(project, "day2", "data.path=moved.npy", "train.steps=15", "ckpt.position=start").expect_success()
    assert "so the run continues at example 64" in more.stderr
    assert more.sidecar(15)["examples"] == 5 * 16
    verified = ("data.path=moved.npy", "train.steps=17", f"ckpt.resume={first.run_dir}", "ckpt.position=keep")
    assert "verified: after 7 steps from step 10" in train(project, "proof", *verified, "action=verify").stderr


def test_a_split_without_a_seed_ends_before_the_first_step(project: Path) -> None:
    unseeded = ("data.path=day1.npy", "data.split_seed=null", "train.steps=2")
    refused = train(project, "refused", *unseeded, "train.max_restarts=2")
    assert refused.exit_status != 0 and "restart 1 of 2" not in refused.stderr
    assert "has loaded other training data (the content of the examples differs) than the driver" in refused.stderr
    assert refused.summary["steps"] == 0
    train(project, "accepted", *unseeded, "++data.resume=approximate").expect_success()


def test_fit_is_refused_too(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FIT)
    first = run_script(script, "100", "1", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    refused = run_script(script, "120", "2", cwd=tmp_path)
    assert refused.returncode != 0
    assert "examples: 120 instead of 100" in refused.stderr and 'overrides=["ckpt.position=start"]' in refused.stderr
    begun = run_script(script, "120", "2", "ckpt.position=start", cwd=tmp_path)
    assert begun.returncode == 0, begun.stderr
    sidecar = json.loads((tmp_path / "run" / "ckpt" / "model.ckpt-8.json").read_text())
    assert (sidecar["step"], sidecar["examples"]) == (8, 4 * 8)
