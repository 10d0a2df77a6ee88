"""Metrics of groups: a table with a column of the kind group, TensorFlow 1 graphs and steps. Any number of workers
computes those of scikit-learn, and they decide."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from sklearn.metrics import log_loss, ndcg_score, roc_auc_score

from tests.integration.runs import Run, launch
from tests.shared import shared

ROWS, USERS = 160, 23
NAMES = ("gauc", "group_log_loss", "group_recall_at_3", "group_ndcg_at_3", "calibration", "calibration_error")
TABLE = (
    *("model=tabular", "data.train=train.csv", "data.validation=held.csv", "data.batch_size=16", "train.steps=4"),
    *("data.columns={user: group, item: category, price: number, clicked: label}", "tracking=off"),
    f"model.validation_metrics=[{','.join(NAMES)}]",
)


def rows(seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    user, item = draw.integers(0, USERS, ROWS), draw.integers(0, 6, ROWS)
    clicked = (draw.random(ROWS) < 0.1 + 0.1 * item).astype(np.int64)
    return {"user": user, "item": item, "price": draw.random(ROWS), "clicked": clicked}


def write(path: Path, seed: int) -> None:
    columns = rows(seed)
    lines = [f"u{u},i{i},{p:.4f},{c}" for u, i, p, c in zip(*columns.values(), strict=True)]
    path.write_text("\n".join([",".join(columns), *lines, ""]), encoding="utf-8")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in which three workers validated."""

    def train(folder: Path) -> Path:
        write(folder / "train.csv", 1)
        write(folder / "held.csv", 2)
        lines = ("comm=sharded", "cluster.workers=3", "train.validate_steps=2", "train.objective=gauc")
        return launch(*TABLE, *lines, cwd=folder).expect_success().run_dir

    return shared(tmp_path_factory, "trained_with_groups", train)


def expected(predicted: np.ndarray) -> dict[str, float]:
    """Returns the metrics of all validation rows by scikit-learn, and by their definitions."""
    held = rows(2)
    inside = [held["user"] == user for user in np.unique(held["user"])]
    groups = [(held["clicked"][mine], predicted[mine]) for mine in inside]
    both = [one for one in groups if 0 < one[0].mean() < 1]
    relevant = [one for one in groups if one[0].any()]
    bins = np.floor(predicted * 10)
    errors = [abs((predicted - held["clicked"])[bins == number].sum()) for number in np.unique(bins)]
    return {
        "gauc": np.average([roc_auc_score(*one) for one in both], weights=[len(one[0]) for one in both]),
        "gauc_left_out": len(groups) - len(both),
        "group_log_loss": np.mean([log_loss(*one, labels=[0, 1]) for one in groups]),
        "group_log_loss_left_out": 0,
        "group_recall_at_3": np.mean([labels[np.argsort(-s)[:3]].sum() / labels.sum() for labels, s in relevant]),
        "group_recall_at_3_left_out": len(groups) - len(relevant),
        "group_ndcg_at_3": np.mean([ndcg_score([labels], [scores], k=3) for labels, scores in relevant]),
        "group_ndcg_at_3_left_out": len(groups) - len(relevant),
        "calibration": predicted.sum() / held["clicked"].sum(),
        "calibration_error": sum(errors) / ROWS,
    }


def numbers(run_dir: Path) -> dict[str, float]:
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    found = {key.removeprefix("validation_"): value for key, value in summary.items() if key.startswith("validation_")}
    return {key: value for key, value in found.items() if key.startswith(NAMES)}


def test_the_metrics_of_a_table_are_those_of_all_predictions_at_once(trained: Path, tmp_path: Path) -> None:
    lines = (*TABLE[:1], *(f"data.{part}={trained.parent / name}.csv" for part, name in PARTS.items()), *TABLE[3:])
    predict = launch(*lines, "action=predict", f"ckpt.resume={trained}", cwd=tmp_path, name="predict").expect_success()
    files = sorted((predict.run_dir / "predictions").glob("*.parquet"))
    predicted = pyarrow.parquet.read_table(files)["output"].to_numpy().astype(np.float64)
    assert numbers(trained) == pytest.approx(expected(predicted), rel=1e-5)
    assert not (trained / "validation_rows").exists()
    evaluate = launch(*lines, "action=evaluate", f"ckpt.resume={trained}", "cluster.workers=1", cwd=tmp_path)
    assert numbers(evaluate.expect_success().run_dir) == pytest.approx(numbers(trained), rel=1e-6)


PARTS = {"train": "train", "validation": "held"}


def test_gauc_decides_which_checkpoint_is_the_best(trained: Path) -> None:
    best = json.loads((trained / "ckpt" / "best.json").read_text(encoding="utf-8"))
    assert best["objective"] == "gauc" and 0 < best["value"] <= 1
    summary = Run(trained, 0, "", "", 0.0).summary
    assert (summary["objective"], summary["objective_direction"]) == ("gauc", "maximize")
    assert summary["objective_value"] == summary["validation_gauc"] <= best["value"]


def test_a_metric_of_groups_ends_the_training(trained: Path, tmp_path: Path) -> None:
    """With a learning rate of zero no validation is better than the first one."""
    lines = ("train.steps=20", "train.validate_steps=2", "train.patience=1", "train.objective=group_log_loss")
    done = launch(*TABLE, *lines, "model.learning_rate=0.0", "comm=hybrid", cwd=trained.parent, name=tmp_path.name)
    assert done.expect_success().summary["steps"] == 4
    assert done.summary["objective_direction"] == "minimize"


def test_a_metric_of_groups_ranks_the_jobs_of_a_sweep(trained: Path) -> None:
    lines = ("train.objective=group_ndcg_at_3", "model.embedding_size=2,8", "comm=local", "train.steps=2")
    place = f"hydra.sweep.dir={trained.parent / 'sweep'}"
    swept = launch("-m", *TABLE, *lines, place, cwd=trained.parent, name="sweep").expect_success()
    results = json.loads((swept.run_dir / "results.json").read_text(encoding="utf-8"))
    values = [job["objective"] for job in results["jobs"]]
    assert values == sorted(values, reverse=True) and len(set(values)) == 2
