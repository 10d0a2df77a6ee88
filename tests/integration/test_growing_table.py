"""Columns of CSV files whose vocabularies grow: trained day by day, on any number of ranks, counted, evaluated, served,
and taken into tables of other capacities."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import pyarrow.parquet
import pytest
import tensorflow as tf

from tests.integration.growing_runs import by_key, checkpoint
from tests.integration.runs import Run, launch
from tests.shared import shared

COLUMNS = (
    "data.columns={user: {category: {grows: true}}, item: {category: {grows: true, integers: true}}, "
    'tags: {categories: {grows: true, separator: "|"}}, price: number, liked: label}'
)
FIXED = ("data=table", "model=tabular", COLUMNS, "data.batch_size=20", "model.units=[4]", "train.log_every=4")
TABLES = ("user", "item", "tags")
CAPACITY, LARGER, ROWS, STEPS = 20480, 40960, 400, 10

pytestmark = pytest.mark.timeout(1200)


def write_day(path: Path, first: int, last: int) -> Path:
    """Writes rows with users, items and tags from a range."""
    draws = np.random.default_rng(first)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "tags", "price", "liked"])
        for _ in range(ROWS):
            user, item = draws.integers(first, last, 2).tolist()
            tags = "|".join(f"tag {tag}" for tag in draws.integers(first, last, draws.integers(0, 4)))
            writer.writerow([f"u {user}", item * 10**15 - 10**17, tags, f"{draws.normal():.3f}", user % 2])
    return path


def keys_in(path: Path) -> dict[str, set[int]]:
    """Returns the keys of each column."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    words = {"user": {row["user"] for row in rows}, "tags": {tag for row in rows for tag in row["tags"].split("|")}}
    found = {name: set(_fingerprints(sorted(strings - {""}))) for name, strings in words.items()}
    return found | {"item": {int(row["item"]) for row in rows}}


def _fingerprints(strings: list[str]) -> list[int]:
    return tf.bitcast(tf.fingerprint(strings), tf.int64).numpy().tolist()


def run(folder: Path, name: str, day: int, *arguments: str, workers: int = 2) -> Run:
    """Runs the files of a day. Each number of workers has the same steps."""
    data = (f"data.train={folder / f'day{day}.csv'}", f"data.validation={folder / 'both.csv'}", "data.shuffle=off")
    size = (f"cluster.workers={workers}", f"data.batch_size={40 // workers}")
    if not any(one.startswith("model.capacity=") for one in arguments):
        arguments = (*arguments, f"model.capacity={CAPACITY}")
    cache = f"data.cache_dir={folder / 'cache'}"
    mode = "comm=local" if workers == 1 else "comm=sharded"
    return launch(*FIXED, *data, *size, cache, mode, *arguments, cwd=folder, name=name)


def table_of(column: str) -> str:
    return f"embedding_{column}"


def rows_of(column: str) -> str:
    return f"{table_of(column)}/rows"


def slot(column: str) -> str:
    return f"adagrad/{table_of(column)}_rows_accumulator"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of two days, and a run of the first day («day1») that is recorded in MLflow. It validates
    in between, with keys of no training step."""

    def train(folder: Path) -> Path:
        write_day(folder / "day1.csv", 0, 150)
        write_day(folder / "day2.csv", 100, 300)
        write_day(folder / "both.csv", 0, 301)
        uri = f"tracking.uri=sqlite:///{folder / 'mlflow.db'}"
        run(folder, "day1", 1, f"train.steps={STEPS}", "train.validate_steps=5", uri).expect_success()
        return folder

    return shared(tmp_path_factory, "trained_on_growing_columns", train)


def day1(folder: Path) -> Run:
    return Run(folder / "day1", 0, "", "", 0.0)


def test_the_keys_of_the_training_rows_have_rows(folder: Path) -> None:
    saved, expected = checkpoint(day1(folder)), keys_in(folder / "day1.csv")
    for column in TABLES:
        assert by_key(saved, table_of(column), rows_of(column)).keys() == expected[column]


def test_how_full_the_tables_are_is_recorded(folder: Path) -> None:
    summary, saved = day1(folder).summary, checkpoint(day1(folder))
    client = mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    expected = keys_in(folder / "day1.csv")
    for column in TABLES:
        name = f"vocabulary/embedding_{column}"
        history = {
            metric: sorted(
                client.get_metric_history(summary["mlflow_run_id"], f"{name}/{metric}"), key=lambda m: m.step
            )
            for metric in ("keys", "fill", "fill_of_fullest_bucket", "new_keys_per_step", "overflow")
        }
        assert [one.step for one in history["keys"]] == [1, 4, 5, 8, 10]
        counts = [0, *(one.value for one in history["keys"])]
        assert counts[-1] == len(expected[column])
        steps = np.diff([0, 1, 4, 5, 8, 10])
        per_step = [one.value for one in history["new_keys_per_step"]]
        np.testing.assert_allclose(per_step, np.diff(counts) / steps)
        assert history["fill"][-1].value == pytest.approx(len(expected[column]) / CAPACITY)
        most = saved[f"embedding_{column}/fill"].max()
        assert history["fill_of_fullest_bucket"][-1].value == pytest.approx(most / (CAPACITY // 1024))
        assert history["overflow"][-1].value == 0


def test_the_terminal_tells_how_full_the_tables_are(folder: Path) -> None:
    done = run(folder, "shared", 1, "train.steps=4", "tracking=off", "model.embedding_size=2").expect_success()
    found = {column: len(by_key(checkpoint(done), table_of(column), rows_of(column))) for column in TABLES}
    for column, count in found.items():
        assert f"vocabulary of embedding_{column}: {count} keys in {CAPACITY:,} rows" in done.stderr
    assert " new/step, fullest bucket " in done.stderr


def test_the_next_day_goes_on_with_another_number_of_ranks(folder: Path) -> None:
    """One process that trains both days equals two ranks and then three."""
    both = ("tracking=off", "ckpt.position=start", f"train.steps={2 * STEPS}")
    second = run(folder, "day2", 2, f"ckpt.resume={folder / 'day1'}", *both, workers=4).expect_success()
    alone = run(folder, "alone1", 1, f"train.steps={STEPS}", "tracking=off", workers=1).expect_success()
    resumed = f"ckpt.resume={alone.run_dir}"
    expected = checkpoint(run(folder, "alone2", 2, resumed, *both, workers=1).expect_success())
    found, days = checkpoint(second), [keys_in(folder / f"day{day}.csv") for day in (1, 2)]
    for column in TABLES:
        for rows in (rows_of(column), slot(column)):
            one, other = by_key(expected, table_of(column), rows), by_key(found, table_of(column), rows)
            assert one.keys() == other.keys() == days[0][column] | days[1][column]
            for key, row in one.items():
                np.testing.assert_allclose(other[key], row, rtol=1e-4, atol=1e-6, err_msg=f"{rows} {key}")


@pytest.mark.parametrize("capacity", [CAPACITY, LARGER])
def test_a_warm_start_takes_rows_and_slots_by_key(capacity: int, folder: Path) -> None:
    """Nothing trains, so all rows of the first day are as they were, and new keys have their initial rows."""
    start = (f"ckpt.warm_start={folder / 'day1'}", "model.learning_rate=0.0", "train.steps=10", "tracking=off")
    warm = run(folder, f"warm{capacity}", 2, *start, f"model.capacity={capacity}", workers=4).expect_success()
    before, after = checkpoint(day1(folder)), checkpoint(warm)
    days = [keys_in(folder / f"day{day}.csv") for day in (1, 2)]
    for column in TABLES:
        assert len(after[rows_of(column)]) == capacity
        old, new = by_key(before, table_of(column), rows_of(column)), by_key(after, table_of(column), rows_of(column))
        assert new.keys() == days[0][column] | days[1][column]
        assert days[1][column] - days[0][column]
        for key, row in old.items():
            np.testing.assert_array_equal(new[key], row)
        slots = by_key(before, table_of(column), slot(column)), by_key(after, table_of(column), slot(column))
        for key in days[0][column] - days[1][column]:
            np.testing.assert_array_equal(slots[1][key], slots[0][key])
        assert all(np.abs(new[key]).max() <= 0.05 for key in days[1][column] - days[0][column])


def test_a_warm_start_into_too_small_a_table_is_refused(folder: Path) -> None:
    start = (f"ckpt.warm_start={folder / 'day1'}", "train.steps=1", "tracking=off", "model.capacity=1024")
    failed = run(folder, "small", 2, *start)
    assert failed.exit_status != 0
    saved = checkpoint(day1(folder))
    most = {column: saved[f"embedding_{column}/fill"].max() for column in TABLES}
    told = [
        f"a bucket of «embedding_{column}» has {keys} keys in the checkpoint, but room for 1 in the model; give the "
        f"layer a capacity of at least {1024 * keys}, or, to start it afresh, add "
        f"ckpt.take.exclude=['embedding_{column}/rows']"
        for column, keys in most.items()
    ]
    assert any(one in failed.stderr for one in told)


def test_excluded_rows_and_their_map_start_afresh(folder: Path) -> None:
    start = (f"ckpt.warm_start={folder / 'day1'}", "train.steps=10", "tracking=off")
    done = run(folder, "fresh", 2, *start, "ckpt.take.exclude=[embedding_user/rows]").expect_success()
    days = [keys_in(folder / f"day{day}.csv") for day in (1, 2)]
    saved = checkpoint(done)
    assert by_key(saved, table_of("user"), rows_of("user")).keys() == days[1]["user"]
    assert by_key(saved, table_of("item"), rows_of("item")).keys() == days[0]["item"] | days[1]["item"]


def test_evaluation_and_prediction_answer_by_key_and_insert_nothing(folder: Path) -> None:
    """The rows have keys of no training step. Any number of ranks gives the same numbers, which the served model
    computes from raw strings too."""
    resume = (f"ckpt.resume={folder / 'day1'}", "tracking=off")
    losses = [
        run(folder, f"evaluated{workers}", 1, "action=evaluate", *resume, workers=workers).expect_success().summary
        for workers in (1, 4)
    ]
    assert losses[0]["validation_loss"] == pytest.approx(losses[1]["validation_loss"], rel=1e-5)
    assert losses[0]["validation_loss"] == pytest.approx(day1(folder).summary["validation_loss"], rel=1e-5)
    predicted = run(folder, "predicted", 1, "action=predict", *resume).expect_success()
    table = pyarrow.parquet.read_table(sorted((predicted.run_dir / "predictions").glob("*.parquet")))
    exported = run(folder, "exported", 1, "action=export", *resume).expect_success()
    with (folder / "both.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    raw = {"user": [row["user"] for row in rows], "tags": [row["tags"] for row in rows]}
    numbers = {"item": [int(row["item"]) for row in rows], "price": [float(row["price"]) for row in rows]}
    np.savez(folder / "raw.npz", **raw, item=np.array(numbers["item"]), price=np.array(numbers["price"], np.float32))
    answers = served(exported.run_dir / "saved_model", folder / "raw.npz")
    np.testing.assert_allclose(table["output"], answers, rtol=1e-4, atol=1e-6)


def served(model: Path, raw: Path) -> np.ndarray:
    """Returns the answers of a served model, without parallax_runner."""
    code = (
        "import sys, numpy as np, tensorflow as tf; sys.modules['parallax_runner'] = None\n"
        f"x = {{name: tf.constant(value) for name, value in np.load({str(raw)!r}).items()}}\n"
        f"(answer,) = tf.saved_model.load({str(model)!r}).signatures['serving_default'](**x).values()\n"
        f"np.save({str(raw.with_suffix('.npy'))!r}, answer.numpy().ravel())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return np.load(raw.with_suffix(".npy"))
