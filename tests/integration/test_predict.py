"""`action=predict` writes the outputs of a checkpoint, whatever the number of workers, and goes on after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import tensorflow as tf

from parallax_runner.data.clicks import load
from tests.integration.runs import Run, launch
from tests.shared import shared

ROWS = 3000  # three files: one has 952 rows, and its last batch is partial
MODEL = (
    *("model=dlrm_keras", "data.cardinalities=[20,30]", "data.dense_features=3", "data.examples=100"),
    *(f"data.validation_examples={ROWS}", "data.batch_size=7", "tracking=off"),
)
STARTS = (0, 1029, 2058)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""

    def train(folder: Path) -> Path:
        done = launch(*MODEL, "train.steps=6", "comm=sharded", cwd=folder).expect_success()
        exported = launch(*MODEL, "action=export", f"ckpt.resume={done.run_dir}", cwd=folder, name="exported")
        exported.expect_success()
        return done.run_dir

    return shared(tmp_path_factory, "trained_for_prediction", train)


def predict(trained: Path, tmp_path: Path, *more: str) -> Run:
    return launch(*MODEL, "action=predict", f"ckpt.resume={trained}", *more, cwd=tmp_path)


def files(run: Run) -> list[Path]:
    return sorted(path for path in (run.run_dir / "predictions").iterdir() if path.name != "about.json")


def expected_from(trained: Path) -> np.ndarray:
    """Returns what plain Keras predicts."""
    data = load(dense_features=3, cardinalities=[20, 30], examples=100, validation_examples=ROWS, seed=1)
    batch = data.validation_batch(0, ROWS)
    model: Any = keras.models.load_model(trained.parent / "exported" / "model.keras")
    return model.predict({name: batch[name] for name in ("dense", "categorical")}, verbose=0)[:, 0]


@pytest.mark.parametrize("mode", ["comm=sharded cluster.workers=2", "comm=hybrid cluster.workers=4"])
def test_any_number_of_workers_writes_what_keras_predicts(mode: str, trained: Path, tmp_path: Path) -> None:
    done = predict(trained, tmp_path, *mode.split()).expect_success()
    assert f"predicted after 6 steps: {done.run_dir / 'predictions'}" in done.stderr
    names = [f"rows-{start:012d}-{stop:012d}.parquet" for start, stop in zip(STARTS, (*STARTS[1:], ROWS), strict=True)]
    assert [path.name for path in files(done)] == names
    table = pyarrow.parquet.read_table(files(done))
    assert table.column_names == ["row", "output"]
    np.testing.assert_array_equal(table["row"], np.arange(ROWS))
    np.testing.assert_allclose(table["output"], expected_from(trained), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("source", ["model.keras", "theirs"])
def test_a_file_of_keras_and_a_checkpoint_of_tensorflow_predict_what_keras_predicts(
    source: str, trained: Path, tmp_path: Path
) -> None:
    file = trained.parent / "exported" / "model.keras"
    if source != file.name:
        file = Path(tf.train.Checkpoint(model=keras.models.load_model(file)).write(str(tmp_path / source)))
    done = predict(trained, tmp_path, f"ckpt.resume={file}", "comm=sharded", "cluster.workers=3").expect_success()
    table = pyarrow.parquet.read_table(files(done))
    np.testing.assert_array_equal(table["row"], np.arange(ROWS))
    np.testing.assert_allclose(table["output"], expected_from(trained), rtol=1e-5, atol=1e-6)
    about = json.loads((done.run_dir / "predictions" / "about.json").read_text(encoding="utf-8"))
    assert str(file) in about.values()


def test_a_run_goes_on_with_the_files_that_are_missing(trained: Path, tmp_path: Path) -> None:
    done = predict(trained, tmp_path, "predict.format=csv", "comm=sharded").expect_success()
    first, second, third = files(done)
    before = [pyarrow.csv.read_csv(path) for path in files(done)]
    second.unlink()
    kept = first.stat().st_mtime_ns, third.stat().st_mtime_ns
    predict(trained, tmp_path, "predict.format=csv", "comm=sharded", "cluster.workers=3").expect_success()
    assert [path.name for path in files(done)] == [first.name, second.name, third.name]
    assert (first.stat().st_mtime_ns, third.stat().st_mtime_ns) == kept
    for path, expected in zip(files(done), before, strict=True):
        found = pyarrow.csv.read_csv(path)
        np.testing.assert_array_equal(found["row"], expected["row"])
        np.testing.assert_allclose(found["output"], expected["output"], rtol=1e-5, atol=1e-6)
    other = predict(trained, tmp_path, "predict.format=csv", "comm=sharded", "read.part=train")
    assert other.exit_status != 0
    assert "this folder has other predictions: part validation, rows 3000; choose another folder" in other.stderr
    about = json.loads((done.run_dir / "predictions" / "about.json").read_text())
    assert (about["part"], about["rows"], about["format"]) == ("validation", ROWS, "csv")
