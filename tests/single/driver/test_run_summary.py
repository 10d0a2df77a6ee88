"""`summary.json`: which fields it has, in which order, and where its numbers come from."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.objective import Goal, Objective
from parallax_runner.driver.partition_results import SearchSummary
from parallax_runner.driver.recovery import Restarts
from parallax_runner.driver.run_state import RunState
from parallax_runner.driver.run_summary import RunSummary, UntouchedSummary, with_training
from parallax_runner.launch.blame.first_death import Failure
from parallax_runner.launch.processes import RunResult
from parallax_runner.track.progress import ProgressDisplay
from parallax_runner.track.run_record import RunRecord
from parallax_runner.track.tracker import NoTracker

CONFIG = {
    "action": "train",
    "comm": {"name": "ps"},
    "model": {"_target_": "m"},
    "data": {"batch_size": 4},
    "cluster": {"workers": 2},
    "train": {"max_restarts": 1},
}
ALWAYS = [
    "status",
    "action",
    "comm",
    "model",
    "workers",
    "servers",
    "steps",
    "first_step",
    "restarts",
    "global_batch",
    "loss_first",
    "loss_last",
    "steps_per_sec",
    "examples_per_sec",
    "words_per_sec",
    "step_ms_p50",
    "step_ms_p90",
    "data_wait_share",
    "sent_bytes_per_step",
    "startup_secs",
    "mlflow_run_id",
    "ckpt_path",
    "error",
    "version",
    "commit",
]
BEGUN = RunSummary.begun(from_plain(CONFIG))
FAILURE = Failure("worker", 1, "h", "killed", ())


@pytest.fixture
def record() -> RunRecord:
    found = RunRecord(2, 9, 1, 8, None, NoTracker(), ProgressDisplay(steps=9, log_every=1), contributors=1)
    found.last_step, found.loss_first, found.loss_last = 7, 3.0, 2.0
    found.staleness, found.dropped = Counter({0: 2}), Counter({1: 3})
    found.validation = {"validation/loss": 4.0, "validation/auc": 0.75}
    found.training = {"train/auc": 0.5}
    return found


def test_a_run_of_which_nothing_is_known_has_all_fields() -> None:
    fields = BEGUN.flat()
    assert list(fields) == ALWAYS
    assert (fields["status"], fields["workers"], fields["global_batch"], fields["restarts"]) == ("failed", 2, 8, 0)


def test_parts_stand_among_the_other_fields_in_their_order(record: RunRecord) -> None:
    chief: dict[str, Any] = {
        **{"steps": 9, "first_step": 5, "steps_per_sec": 2.0, "skipped_steps": 1, "ckpt_path": "there"},
        **{"saved_model": None, "saved_model_error": "a reason", "sent_bytes_per_step": 10.0},
        **{"keras_model": "m.keras", "keras_model_error": None},
        "comparison": {"ok": True, "max_relative": 0.5},
    }
    untouched = UntouchedSummary(True, 0.25, None)
    searched = dataclasses.replace(BEGUN, first_step=3, search=SearchSummary.of((), None), untouched=untouched)
    fields = with_training(
        searched,
        record,
        {0: chief | {"data_wait_share": 0.5}, 1: {"sent_bytes_per_step": 20.0, "data_wait_share": 0.25}},
        {},
    ).flat()
    curve = [f"partition_theta{number}_ms" for number in (0, 1, 2)]
    assert list(fields)[len(ALWAYS) :] == [
        *("partition_candidates", "partition_step_ms", "partition_error_ms", "partition_choice", *curve),
        *("skipped_steps", "saved_model", "saved_model_error", "keras_model", "keras_model_error"),
        *("staleness_mean", "staleness_max", "staleness_0"),
        *("dropped_gradients_total", "dropped_gradients_worker_0", "dropped_gradients_worker_1"),
        *("train_auc", "validation_loss", "validation_auc", "objective", "objective_value", "objective_direction"),
        *("untouched_verified", "untouched_max_difference", "untouched_left_out"),
        *("verified", "max_difference", "differ_unmerged"),
    ]
    expected = {"steps": 9, "first_step": 3, "examples_per_sec": 16.0, "words_per_sec": None, "loss_last": 2.0}
    expected |= {
        "sent_bytes_per_step": 15.0,
        "data_wait_share": 0.375,
        "saved_model_error": "a reason",
        "validation_loss": 4.0,
    }
    expected |= {"train_auc": 0.5, "validation_auc": 0.75}
    expected |= {"objective": "validation loss", "objective_value": 4.0, "objective_direction": "minimize"}
    expected |= {"staleness_mean": 0.0, "dropped_gradients_worker_1": 3.0, "verified": True, "ckpt_path": "there"}
    expected |= {"untouched_verified": True, "untouched_max_difference": 0.25, "untouched_left_out": None}
    assert {name: fields[name] for name in expected} == expected


def test_a_goal_that_no_validation_has_found_is_replaced_by_the_training_loss(record: RunRecord) -> None:
    record.goal = Goal("auc", "auc", "maximize")
    assert with_training(BEGUN, record, {}, {}).objective == Objective("auc", 0.75, "maximize")
    record.validation = {}
    assert with_training(BEGUN, record, {}, {}).objective == Objective("training loss", 2.0, "minimize")


def test_a_difference_fails_the_run(record: RunRecord) -> None:
    comparison = {"ok": False, "max_relative": "nan", "missing": ["v"], "first_difference": None}
    comparison |= {"differs_in_steps": [11, 20]}
    found = with_training(BEGUN, record, {0: {"comparison": comparison, "steps": 10}}, {})
    assert (found.status, found.error) == ("failed", "the result differs from training on one device: «v» is missing")
    assert found.flat()["max_difference"] == "nan"
    longer = with_training(BEGUN, record, {0: {"comparison": comparison, "steps": 40}}, {})
    assert longer.error == "the result differs from training on one device in steps 11 to 20: «v» is missing"


def test_losses_of_a_run_that_had_done_all_steps_are_kept(record: RunRecord) -> None:
    record.loss_first = record.loss_last = None
    before = {"steps": 7, "loss_first": 5.0, "loss_last": 4.0}
    found = with_training(BEGUN, record, {}, before)
    assert (found.loss_first, found.loss_last) == (5.0, 4.0)
    assert with_training(BEGUN, record, {}, before | {"steps": 6}).loss_last is None
    record.unknown_loss = "the script has several losses"
    fields = with_training(BEGUN, record, {}, before).flat()
    assert (fields["loss_first"], fields["loss_last"]) == (None, None)
    assert fields["unknown_loss"] == "the script has several losses"


def test_supervision_counts_restarts_and_the_summary_has_them() -> None:
    state = RunState.begun(from_plain(CONFIG))
    failed = RunResult("failed", 1, FAILURE)
    assert state.restarts.failure_to_retry(failed, was_stopped=False) is FAILURE
    assert state.restarts.failure_to_retry(failed, was_stopped=True) is None
    assert state.restarts.failure_to_retry(RunResult("finished", 0), was_stopped=False) is None
    state.restarts.done += 1
    assert state.known().restarts == 1 and state.summary.restarts == 0
    assert state.restarts.failure_to_retry(failed, was_stopped=False) is None
    assert RunState.begun(from_plain({**CONFIG, "action": "verify"})).restarts == Restarts(0, trains=False)


def test_a_failure_that_recurs_is_not_retried() -> None:
    failed = RunResult("failed", 1, dataclasses.replace(FAILURE, recurs=True))
    assert Restarts(5).failure_to_retry(failed, was_stopped=False) is None
