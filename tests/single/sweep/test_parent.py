"""What the run above the jobs is told: shared parameters, lists, objectives."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.utils import get_args_parser

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.objective import PERPLEXITY, VALIDATION_LOSS, Goal
from parallax_runner.driver.check import check
from parallax_runner.sweep.parent import log_objectives, open_parent, params
from parallax_runner.track.tracker import NoTracker


def test_shared_values_and_lists() -> None:
    configs = [
        from_plain({"action": "train", "run_dir": "a", "train": {"seed": 1, "steps": 5}, "comm": {"name": "mpi"}}),
        from_plain(
            {
                "action": "train",
                "run_dir": "b",
                "train": {"seed": 2, "steps": 5},
                "comm": {"name": "mpi"},
                "model": {"more": True},
            }
        ),
        from_plain({"action": "train", "run_dir": "c", "train": {"seed": 1, "steps": 5}, "comm": {"name": "mpi"}}),
    ]
    together = params(configs)
    assert (together["train.seed"], together["train.steps"], together["comm.name"]) == ('["1", "2"]', "5", "mpi")
    assert together["model.more"] == '["true"]'
    assert "run_dir" not in together


class Noting(NoTracker):
    def __init__(self) -> None:
        self.points: list[tuple[int, float | None, float | None]] = []
        self.tags: dict[str, Any] = {}

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        self.tags |= tags

    def log_metrics(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self.points.append((step, metrics["sweep/objective"], metrics["sweep/best_objective"]))


@pytest.mark.parametrize("action", ["plan", "simulate"])
def test_a_sweep_whose_jobs_are_not_recorded_has_no_run(
    action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = check(get_args_parser().parse_args(["-m", f"action={action}", "cluster.workers=2,4"]))
    assert sweep is not None
    assert isinstance(open_parent(sweep), NoTracker)
    assert list(tmp_path.iterdir()) == []


def test_best_objective_so_far() -> None:
    tracker = Noting()
    log_objectives(tracker, [3.0, 5.0, 1.0], VALIDATION_LOSS)
    assert tracker.points == [(0, 3.0, 3.0), (1, 5.0, 3.0), (2, 1.0, 1.0)]
    assert tracker.tags == {"parallax.objective": "validation loss, minimize"}
    tracker = Noting()
    log_objectives(tracker, [0.5, 0.9, 0.7], Goal("auc", "auc", "maximize"))
    assert [best for _, _, best in tracker.points] == [0.5, 0.9, 0.9]
    assert tracker.tags == {"parallax.objective": "auc, maximize"}
    tracker = Noting()
    log_objectives(tracker, [3.0, 1.0], None)
    assert [best for _, _, best in tracker.points] == [None, None], "a loss is no better perplexity"
    tracker = Noting()
    log_objectives(tracker, [math.nan, 2.0], PERPLEXITY)
    assert [best for _, _, best in tracker.points] == [None, 2.0], "NaN is never the best"
