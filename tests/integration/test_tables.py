"""A CSV file with strings, blanks and lists trains from YAML alone, and its model answers from raw strings."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import tensorflow as tf
import yaml

from tests.integration import tables_page
from tests.integration.runs import LAUNCH_SECS, Run, launch

ROOT = Path(__file__).parents[2]
ROWS, VALIDATION_ROWS, TEST_ROWS, BATCH, STOP, STEPS = 700, 90, 50, 8, 20, 40
CITIES = ["Zürich", "Roma", "", "Łódź", "京都"]
TAGS = ["new", "sale", "a,b", "ü"]
DATA = """
defaults: [table, _self_]
train: [{folder}/train_*.csv]
validation: {folder}/validation.csv
test: {folder}/test.csv
shuffle: full
columns:
  user: {{category: {{min_count: 2, oov: 3}}}}
  city: {{category: {{hash: 20}}}}
  age: {{number: {{fill: 40, standardize: true}}}}
  visits: {{number: {{fill: 0, log: true}}}}
  tags: {{categories: {{separator: "|"}}}}
  seen: {{categories: {{separator: "|", ids: 50, padded_to: 4}}}}
  note: {{text: {{padded_to: 5}}}}
  key: id
  weight: {{weight: }}
  bought: {{label: {{classes: ["no", "yes"]}}}}
batch_size: {batch}
"""


def write_rows(path: Path, count: int, seed: int) -> list[dict[str, str]]:
    draws = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        user, tags = int(draws.integers(0, 60)), draws.choice(TAGS, int(draws.integers(0, 4)))
        rows.append(
            {
                "key": f"{path.stem} {number}",
                "user": f"user {user}",
                "city": CITIES[int(draws.integers(0, len(CITIES)))],
                "age": "" if draws.random() < 0.2 else str(int(draws.integers(18, 90))),
                "visits": "" if draws.random() < 0.2 else str(int(draws.integers(-1, 3000))),
                "tags": "|".join(tags),
                "seen": "|".join(map(str, draws.integers(0, 50, int(draws.integers(0, 7))))),
                "note": f"Visit {number % 7}, PAID ({CITIES[number % 5]})." if number % 6 else "",
                "weight": str(1 + number % 2),
                "bought": "yes" if (user + len(tags)) % 2 else "no",
            }
        )
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return rows


def without_labels(path: Path, copy: Path) -> None:
    """Writes the rows without the columns that only a loss needs."""
    with open(path, encoding="utf-8", newline="") as file, open(copy, "w", encoding="utf-8", newline="") as written:
        reader = csv.DictReader(file)
        kept = [name for name in reader.fieldnames or () if name not in ("bought", "weight")]
        writer = csv.DictWriter(written, kept, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(reader)


def raw_of(rows: list[dict[str, str]]) -> dict[str, Any]:
    """The rows as a client of the served model sends them."""
    strings = {name: tf.constant([row[name] for row in rows]) for name in ("user", "city", "tags", "seen", "note")}
    numbers = {name: tf.constant([float(row[name] or "nan") for row in rows]) for name in ("age", "visits")}
    return strings | numbers


def prediction_of_trained(run: Run, config: dict[str, Any]) -> np.ndarray:
    """What the trained Keras model predicts for the validation rows, from the features that training uses."""
    import keras

    from models.tabular import AverageOfRagged
    from parallax_runner.data.table.source import load

    given = {name: value for name, value in config.items() if name not in ("_target_", "batch_size")}
    dataset = load(**given)
    batch = dataset.validation_batch(0, dataset.validation_size)
    values, splits = (batch.pop(f"tags/{name}") for name in ("values", "row_splits"))
    features = {name: tf.constant(array) for name, array in batch.items() if name not in ("bought", "weight")}
    features["tags"] = tf.RaggedTensor.from_row_splits(values, splits)
    model = keras.models.load_model(run.run_dir / "model.keras", {"AverageOfRagged": AverageOfRagged})
    return model(features, training=False).numpy()


def test_strings_blanks_and_lists_are_trained_resumed_and_served(tmp_path: Path) -> None:
    for number in range(2):
        write_rows(tmp_path / f"train_{number}.csv", ROWS // 2, seed=number)
    rows = write_rows(tmp_path / "validation.csv", VALIDATION_ROWS, seed=9)
    held_back = write_rows(tmp_path / "test.csv", TEST_ROWS, seed=5)
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "conf" / "data" / "shop.yaml").write_text(DATA.format(folder=tmp_path, batch=BATCH))
    common = ("--config-dir", str(tmp_path / "conf"), "model=tabular", "data=shop", "comm=sharded", "tracking=mlflow")
    cache = f"data.cache_dir={tmp_path / 'cache'}"

    def run(workers: int, steps: int, *more: str, name: str = "out") -> Run:
        sizes = (f"cluster.workers={workers}", f"train.steps={steps}", "model.units=[8]", "model.embedding_size=4")
        return launch(*common, cache, *sizes, *more, cwd=tmp_path, name=name).expect_success()

    first = run(3, STOP)
    assert first.sidecar(STOP)["examples"] == STOP * BATCH * 3
    resumed = run(2, STEPS)
    assert resumed.summary["first_step"] == STOP
    assert resumed.sidecar(STEPS)["examples"] == STOP * BATCH * 3 + (STEPS - STOP) * BATCH * 2
    for folder in (resumed.run_dir, resumed.ckpt_dir):
        with np.load(folder / "table.npz") as learned:
            assert b"user 7" in learned["user/vocabulary"].tobytes() and learned["age/mean"] > 0
    moved = tmp_path / "elsewhere" / "model"
    shutil.copytree(resumed.run_dir / "saved_model", moved)
    shutil.rmtree(resumed.run_dir / "saved_model")
    serve = tf.saved_model.load(str(moved)).signatures["serving_default"]
    (served,) = (tensor.numpy() for tensor in serve(**raw_of(rows)).values())
    frozen = yaml.safe_load((resumed.run_dir / "config.yaml").read_text())
    expected = prediction_of_trained(resumed, frozen["data"])
    assert served.shape == (VALIDATION_ROWS, 1) and np.std(served) > 1e-4
    np.testing.assert_allclose(served, expected, rtol=1e-5, atol=1e-6)

    use = (f"ckpt.resume={resumed.run_dir}", "read.part=test")
    without_labels(tmp_path / "test.csv", tmp_path / "new.csv")
    predicted = run(3, STEPS, "action=predict", *use, f"data.test={tmp_path / 'new.csv'}", name="predicted")
    table = pyarrow.parquet.read_table(sorted((predicted.run_dir / "predictions").glob("*.parquet")))
    assert table["key"].to_pylist() == [f"test {number}" for number in range(TEST_ROWS)]
    (served,) = (tensor.numpy()[:, 0] for tensor in serve(**raw_of(held_back)).values())
    (name,) = set(table.column_names) - {"key"}
    np.testing.assert_allclose(table[name], served, rtol=1e-5, atol=1e-6)
    evaluated = run(2, STEPS, "action=evaluate", *use, name="evaluated").summary
    bought = np.array([row["bought"] == "yes" for row in held_back])
    weights = np.array([float(row["weight"]) for row in held_back])
    losses = -np.log(np.where(bought, served, 1 - served))
    assert evaluated["test_loss"] == pytest.approx((losses * weights).sum() / TEST_ROWS, rel=1e-5)


def test_wrong_columns_and_cells_are_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("user,price,liked\na,1,1\nb,,0\nc,2,1\n")
    arguments = ("model=tabular", "data.train=rows.csv", f"data.cache_dir={tmp_path}", "train.steps=2", "tracking=off")
    told = {
        "{user: catgory, liked: label}": r"data.columns.user=catgory .*no such kind of column; .*category\?",
        "{usr: category, liked: label}": "rows.csv.*usr",
        "{user: category, price: number, liked: label}": r"price.number: .*rows.csv: line 3 has a blank cell;",
    }
    for columns, expected in told.items():
        run = launch(*arguments, f"data.columns={columns}", cwd=tmp_path, is_forked=False)
        assert run.exit_status == 2 and re.search(expected, run.stderr), run.stderr
        run.expect_nothing_started()
    columns = "data.columns={user: category, price: number, liked: label}"
    skipping = launch(*arguments, columns, "data.on_bad_row=skip", "data.batch_size=1", "comm=local", cwd=tmp_path)
    assert "1 bad rows are skipped (data.on_bad_row)" in skipping.expect_success().stderr


def test_a_plan_converts_no_files(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("user,price,liked\na,1,1\nb,2,0\n")
    arguments = ("model=tabular", "action=plan", "data.train=rows.csv", f"data.cache_dir={tmp_path / 'cache'}")

    def plan(user: str, *more: str) -> Run:
        return launch(*arguments, f"data.columns={{user: {user}, price: number, liked: label}}", *more, cwd=tmp_path)

    planned = plan("{category: {max_size: 70}}", "cluster.workers=2").expect_success()
    assert "«user» are planned with max_size strings" in planned.stderr
    (table,) = [one for one in planned.plan["variables"] if one["name"] == "embedding_user/embeddings"]
    assert table["shape"][0] == 71
    refused = plan("category")
    assert refused.exit_status == 2 and "vocabularies of «user» are unknown" in refused.stderr
    measured = plan("{category: {hash: 9}}", "comm=auto")
    assert (
        measured.exit_status == 2 and "a trial measures the rows that steps touch, and action=plan" in measured.stderr
    )
    assert not (tmp_path / "cache").exists()


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    draws = np.random.default_rng(1)
    lines = [f"u{number % 9},a|b,{number if number % 5 else ''},{number % 2}" for number in range(300)]
    (tmp_path / "ratings.csv").write_text("\n".join(["user,tags,price,liked", *lines]) + "\n")
    for day in range(2):
        rows = [
            [day, *draws.integers(0, 99, 13), *(f"{one:08x}" for one in draws.integers(0, 999, 26))] for _ in range(60)
        ]
        text = "".join("\t".join(map(str, row)) + "\n" for row in rows)
        (tmp_path / f"day_{day}.tsv").write_text(text)
    commands = tables_page.commands()
    assert ["model=tabular" in one for one in commands] == [True, False]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for number, command in enumerate(commands):
        small = f"train.steps=2 data.batch_size=8 run_dir=run_{number} tracking=off"
        done = subprocess.run(
            ["bash", "-c", f"{command} {small}"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LAUNCH_SECS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "finished: 2 steps" in done.stderr
