"""`fit` computes metrics of groups in its validations, with any number of workers, and they decide."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from tests.integration.test_fit import run

SCRIPT = Path(__file__).parent / "scripts" / "train_groups.py"


@pytest.mark.parametrize(("comm", "workers"), [("hybrid", 2), ("sharded", 3)])
def test_the_history_has_the_metrics_of_all_rows_at_once(comm: str, workers: int, tmp_path: Path) -> None:
    left = tmp_path / "left.json"
    done = run(SCRIPT, comm, str(workers), str(left), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(left.read_text(encoding="utf-8"))
    history = found.pop("history")
    label, predicted, group, weight = (np.array(found[name]) for name in ("label", "predicted", "group", "weight"))
    inside = [(group == one) & (weight > 0) for one in np.unique(group)]
    both = [mine for mine in inside if 0 < label[mine].mean() < 1]
    areas = [roc_auc_score(label[mine], predicted[mine], sample_weight=weight[mine]) for mine in both]
    gauc = np.average(areas, weights=[weight[mine].sum() for mine in both])
    assert history["val_gauc"][-1] == pytest.approx(gauc, rel=1e-5)
    assert history["val_gauc_left_out"][-1] == len(inside) - len(both)
    losses = [log_loss(label[mine], predicted[mine], sample_weight=weight[mine], labels=[0, 1]) for mine in inside]
    assert history["val_group_log_loss"][-1] == pytest.approx(np.mean(losses), rel=1e-4)
    calibration = (weight * predicted).sum() / (weight * label).sum()
    assert history["val_calibration"][-1] == pytest.approx(calibration, rel=1e-5)
    assert 0 < history["val_group_recall_at_3"][-1] < 1
    # No validation is better by 10, so the callback ends the training after its second epoch.
    assert len(history["val_gauc"]) == len(history["loss"]) == 2
