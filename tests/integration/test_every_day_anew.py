"""A run of the next day takes rows of tables by their strings, although the vocabulary has changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.data.table.vocabularies import vocabulary_in
from tests.integration.runs import Run, launch

TABLE, SLOT = "embedding_user/embeddings", "adagrad/embedding_user_embeddings_accumulator"
COLUMNS = "data.columns={user: {category: {oov: 2}}, price: number, liked: label}"
MODEL = ("data=table", "model=tabular", COLUMNS, "data.batch_size=10", "model.units=[4]", "tracking=off")


def write_day(path: Path, users: range) -> Path:
    draws = np.random.default_rng(len(users))
    lines = [f"user {draws.choice(users)},{draws.normal():.3f},{draws.integers(0, 2)}" for _ in range(400)]
    path.write_text("\n".join(["user,price,liked", *lines]) + "\n")
    return path


def values(run: Run, step: int) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(run.ckpt_dir / f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def rows_by_user(run: Run, table: np.ndarray) -> dict[bytes, np.ndarray]:
    found = vocabulary_in(run.run_dir, "user")
    assert found is not None and found.first == 2 and len(table) == 2 + len(found.words)
    return dict(zip(found.words, table[2:], strict=True))


def test_a_new_day_takes_rows_by_their_strings(tmp_path: Path) -> None:
    days = [write_day(tmp_path / "day1.csv", range(40)), write_day(tmp_path / "day2.csv", range(20, 70))]
    common = (*MODEL, f"data.cache_dir={tmp_path / 'cache'}")
    first = launch(
        *common, f"data.train={days[0]}", "train.steps=20", "comm=sharded", cwd=tmp_path, name="day1"
    ).expect_success()
    warm = (*common, f"data.train={days[1]}", f"ckpt.warm_start={first.run_dir}", "model.learning_rate=0.0")
    refused = launch(*warm, "train.steps=1", cwd=tmp_path, name="refused")
    assert refused.exit_status != 0
    assert (
        "another vocabulary, so the rows of its tables belong to other strings; add ckpt.take.rows=" in refused.stderr
    )
    by_key = f"ckpt.take.rows=[{TABLE}:user]"
    before = values(first, 20)
    for mode in ("comm=sharded cluster.workers=3", "comm=ps"):
        name = mode.replace("=", "_").replace(" ", "_")
        second = launch(*warm, by_key, "train.steps=1", *mode.split(), cwd=tmp_path, name=name).expect_success()
        after = values(second, 1)
        old, new = rows_by_user(first, before[TABLE]), rows_by_user(second, after[TABLE])
        both = old.keys() & new.keys()
        assert len(both) >= 15 and new.keys() - old.keys() and old.keys() - new.keys()
        for user in both:
            np.testing.assert_array_equal(new[user], old[user])
        np.testing.assert_array_equal(after[TABLE][:2], before[TABLE][:2])
        slots = rows_by_user(first, before[SLOT]), rows_by_user(second, after[SLOT])
        assert all((slots[1][user] >= slots[0][user]).all() for user in both)
        untouched = [user for user in both if (slots[1][user] == slots[0][user]).all()]
        assert any((slots[0][user] != slots[0][user][0]).any() for user in untouched) or len(untouched) == 0
        notes = " ".join(second.plan["notes"])
        assert f"takes the rows of {len(both)} strings of «user»" in notes
        assert f"{len(new) - len(both)} are new, and {len(old) - len(both)} are gone" in notes


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("embedding_usr/embeddings:user", "expected VARIABLE:COLUMN with a variable of the model"),
        (f"{TABLE}:price", "expected a column of the data that has a vocabulary; there is user"),
    ],
)
def test_rows_of_nothing_are_refused(rows: str, said: str, tmp_path: Path) -> None:
    day = write_day(tmp_path / "day1.csv", range(9))
    common = (*MODEL, f"data.cache_dir={tmp_path / 'cache'}", f"data.train={day}", "comm=local", "train.steps=1")
    first = launch(*common, cwd=tmp_path, name="first").expect_success()
    done = launch(*common, f"ckpt.warm_start={first.run_dir}", f"ckpt.take.rows=[{rows}]", cwd=tmp_path, name="second")
    assert done.exit_status == 2
    assert said in done.stderr
