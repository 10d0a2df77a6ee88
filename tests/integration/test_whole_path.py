"""The whole path: files, training, evaluation, the next day, predictions, and a served model that agrees with them."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from tests.integration.runs import Run, launch

TABLES = {"user": "embedding_user/embeddings", "tags": "embedding_tags/embeddings"}
COLUMNS = (
    'data.columns={key: id, user: category, tags: {categories: {separator: "|"}}, price: {number: {fill: 5}}, y: label}'
)
BATCH, DAY_1_STEPS, DAY_2_STEPS, HELD_BACK_ROWS, NEW_ROWS = 10, 15, 9, 50, 2100  # new rows: two files and a part

# Plain TensorFlow, which reads CSV files as a client does, and asks the model in batches of another size.
CLIENT = """
import csv, sys
import numpy as np
import tensorflow as tf

saved_model, folder, out = sys.argv[1:]
serve = tf.saved_model.load(saved_model).signatures["serving_default"]

def answers(rows):
    for start in range(0, len(rows), 333):
        part = rows[start : start + 333]
        strings = {name: tf.constant([row[name] for row in part]) for name in ("user", "tags")}
        prices = tf.constant([float(row["price"] or "nan") for row in part])
        (answer,) = serve(**strings, price=prices).values()
        yield answer.numpy()[:, 0]

found = {}
for name in ("new", "held_back"):
    with open(f"{folder}/{name}.csv", encoding="utf-8", newline="") as file:
        found[name] = np.concatenate(list(answers(list(csv.DictReader(file)))))
assert not {"parallax_runner", "models"} & set(sys.modules)
np.savez(out, **found)
"""


def write_rows(path: Path, count: int, users: range) -> list[dict[str, str]]:
    draws = np.random.default_rng(count)
    rows = []
    for number in range(count):
        tags = draws.choice([f"tag {user % 7}" for user in users], int(draws.integers(0, 4)))
        rows.append(
            {
                "key": f"{path.stem} {number}",
                "user": f"Nutzer «{draws.choice(users)}»",
                "tags": "|".join(tags),
                "price": "" if draws.random() < 0.2 else f"{draws.normal(5, 3):.2f}",
                "y": str(len(tags) % 2),
            }
        )
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return rows


def predictions(run: Run) -> dict[str, np.ndarray]:
    """Returns the columns of the files in their order."""
    table = pyarrow.parquet.read_table(sorted((run.run_dir / "predictions").glob("*.parquet")))
    return {name: table[name].to_numpy() for name in table.column_names}


def test_from_files_to_a_served_model_of_the_second_day(tmp_path: Path) -> None:
    write_rows(tmp_path / "day1.csv", 400, range(40))
    write_rows(tmp_path / "day2.csv", 300, range(30, 80))
    held_back = write_rows(tmp_path / "held_back.csv", HELD_BACK_ROWS, range(90))
    new = write_rows(tmp_path / "new.csv", NEW_ROWS, range(90))
    common = ("data=table", "model=tabular", COLUMNS, f"data.batch_size={BATCH}", "model.units=[8]", "tracking=off")
    more = (f"data.cache_dir={tmp_path / 'cache'}", "data.validation=held_back.csv", "data.test=new.csv")

    def run(day: int, workers: int, *lines: str, name: str) -> Run:
        mode = ("comm=sharded", f"cluster.workers={workers}", f"data.train=day{day}.csv")
        return launch(*common, *more, *mode, *lines, cwd=tmp_path, name=name).expect_success()

    first = run(1, 3, f"train.steps={DAY_1_STEPS}", name="first")
    evaluated = run(1, 2, "action=evaluate", f"ckpt.resume={first.run_dir}", name="evaluated").summary
    for name in ("validation_loss", "validation_auc"):
        assert evaluated[name] == pytest.approx(first.summary[name], rel=1e-6)

    rows = ",".join(f"{table}:{column}" for column, table in TABLES.items())
    warm = (f"ckpt.warm_start={first.run_dir}", f"ckpt.take.rows=[{rows}]")
    second = run(2, 2, *warm, f"train.steps={DAY_2_STEPS}", name="second")
    notes = " ".join(second.plan["notes"])
    assert all(f"strings of «{column}»" in notes for column in TABLES)
    assert second.sidecar(DAY_2_STEPS)["examples"] == DAY_2_STEPS * BATCH * 2

    use = f"ckpt.resume={second.run_dir}"
    predicted = predictions(run(2, 3, use, "action=predict", "read.part=test", name="predicted"))
    assert predicted.pop("key").tolist() == [row["key"] for row in new]
    (of_new,) = predicted.values()
    assert np.std(of_new) > 1e-3

    exported = run(2, 1, use, "action=export", name="exported")
    moved = tmp_path / "elsewhere" / "1"
    shutil.copytree(exported.run_dir / "saved_model", moved)
    validation_loss = second.summary["validation_loss"]
    for folder in (first.run_dir, second.run_dir, exported.run_dir, tmp_path / "cache"):
        shutil.rmtree(folder)
    out = tmp_path / "served.npz"
    command = [sys.executable, "-I", "-c", CLIENT, str(moved), str(tmp_path), str(out)]
    subprocess.run(command, check=True, cwd=tmp_path, env={"TF_CPP_MIN_LOG_LEVEL": "2"})
    with np.load(out) as served:
        np.testing.assert_allclose(served["new"], of_new, rtol=1e-5, atol=1e-6)
        of_held_back = served["held_back"]
    labels = np.array([row["y"] == "1" for row in held_back])
    loss = -np.log(np.where(labels, of_held_back, 1 - of_held_back)).mean()
    assert validation_loss == pytest.approx(loss, rel=1e-5)
