"""Runs of models whose vocabularies grow, and what the runs have saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.integration.growing_models import BATCH
from tests.integration.runs import Run, launch

ROOT = Path(__file__).parents[2]
# The runs that `train_by_three_two_one` makes, with the number of ranks of each.
TURNS = {"first": 3, "second": 2, "third": 1}

Values = dict[str, np.ndarray]


def write_conf(folder: Path, files: Mapping[str, str]) -> Path:
    """Writes configuration files, such as `model/mine`, for the runs in a folder. Returns the folder."""
    for name, text in files.items():
        path = folder / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def run(folder: Path, name: str, *arguments: str) -> Run:
    """Runs the model and the data `mine` to the end. `name` is that of the run's folder."""
    fixed = (f"--config-dir={folder / 'conf'}", "model=mine", "data=mine", "tracking=off", "comm=sharded")
    return launch(*fixed, *arguments, cwd=folder, name=name, python_path=ROOT)


def of(folder: Path, name: str) -> Run:
    """Returns a run that has ended before."""
    return Run(folder / name, 0, "", "", 0.0)


def ranks(number: int) -> tuple[str, ...]:
    """Returns the settings for this number of ranks, with the same examples in each step."""
    return f"cluster.workers={number}", f"data.batch_size={BATCH // number}"


def train_by_three_two_one(folder: Path, ends: tuple[int, int, int], *arguments: str, prefix: str = "") -> None:
    """Trains by three ranks, resumes by two, and then by one. `ends` are the last steps of the three runs, whose names
    are those in TURNS after `prefix`."""
    resumed: tuple[str, ...] = ()
    for (name, number), last in zip(TURNS.items(), ends, strict=True):
        given = (*ranks(number), f"train.steps={last}", *resumed, *arguments)
        done = run(folder, prefix + name, *given).expect_success()
        resumed = (f"ckpt.resume={done.run_dir}",)


def checkpoint(done: Run) -> Values:
    """Returns the variables of a run's last checkpoint."""
    return values_in(Path(done.summary["ckpt_path"]))


def values_in(prefix: Path) -> Values:
    """Returns the variables of a checkpoint."""
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def has_key(saved: Values, table: str) -> np.ndarray:
    """Returns whether each row's place has a key (bool [buckets, places])."""
    waiting_places = saved[f"{table}/counts"].shape[1] if f"{table}/counts" in saved else 0
    places = saved[f"{table}/keys"].shape[1] - waiting_places
    if f"{table}/last_used" in saved:
        return saved[f"{table}/last_used"][:, :places] > 0
    return np.arange(places) < saved[f"{table}/fill"][:, np.newaxis]


def by_key(saved: Values, table: str, rows: str) -> dict[int, np.ndarray]:
    """Returns the rows of the variable `rows`, a table or one of its slots, by key. Fails if a key has two rows."""
    is_taken = has_key(saved, table)
    buckets, places = np.nonzero(is_taken)
    keys = saved[f"{table}/keys"][buckets, places].tolist()
    assert len(set(keys)) == len(keys), "a key has two rows"
    return dict(zip(keys, saved[rows][buckets * is_taken.shape[1] + places], strict=True))
