"""Validation and metrics in the loop, on a real small graph in this process alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.best import best_checkpoint, note_validated
from parallax_runner.checkpoints.checkpoint_files import list_checkpoints
from parallax_runner.errors import DataError
from parallax_runner.graph.single_device_graph import MetricSums, SingleDeviceGraph
from parallax_runner.graph.tf_data.tf_dataset import TfDataset
from parallax_runner.train.feed import Feed
from tests.single.small_models import BATCH, captured, dense_model
from tests.single.train.one_rank import Rank, dataset


@pytest.mark.parametrize("rest", [0, 1, BATCH - 1])
@pytest.mark.parametrize("batches", [0, 3])
def test_validation_sums_each_example_once_and_trains_nothing(batches: int, rest: int) -> None:
    """The graph accepts batches of one size only."""
    examples = batches * BATCH + rest
    rank = Rank(data=dataset(validation=examples))
    before = rank.checkpoints.snapshot(rank.session)
    rank.run(0)
    after = rank.checkpoints.snapshot(rank.session)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
    if not examples:
        assert not rank.said("validation")
        return
    (said,) = rank.said("validation")
    assert (said["step"], said["examples"]) == (0, examples)
    batch = dataset(validation=examples).validation_batch(0, examples)
    predicted = np.sum(before["table"][batch["ids"]] * before["weights"], axis=1)
    assert said["loss_sum"] == pytest.approx(np.sum((predicted - batch["y"]) ** 2), rel=1e-9)


def compared(features: Any) -> Any:
    """A model whose predictions depend on the other examples of the batch."""
    found = dense_model(features)
    return found - tf.reduce_max(found)


@pytest.mark.parametrize("rest", [0, 2])
def test_examples_whose_value_is_unknown_are_left_out_and_told(rest: int) -> None:
    rank = Rank(single=captured(compared), data=dataset(validation=2 * BATCH + rest))
    rank.run(0)
    (said,) = rank.said("validation")
    assert (said["examples"], said.get("left_out", 0)) == (2 * BATCH, rest)


def test_an_evaluation_of_such_examples_is_refused() -> None:
    rank = Rank(single=captured(compared), data=dataset(validation=2 * BATCH + 2))
    rank.loop.counts_all = True
    with pytest.raises(DataError, match=rf"the last 2 examples cannot be evaluated: .* only batches of {BATCH}, "):
        rank.run(0)
    assert not rank.said("validation")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_sum_each_example_of_a_tf_data_dataset_once(ranks: int) -> None:
    """Each worker has BATCH examples of a step. The validation batches of the data have another size."""
    given = dataset(validation=3 * BATCH + 3)
    held_back = given.validation_batch(0, given.validation_size)
    train = tf.data.Dataset.from_tensor_slices(given.train_batch(0, 50)).batch(BATCH * ranks, drop_remainder=True)
    validation = tf.data.Dataset.from_tensor_slices(held_back).batch(BATCH - 1)
    data, reports, single = TfDataset.of(train, validation), [], captured(optimizer="adam")
    for number in range(ranks):
        rank = Rank(single=single, feed=Feed(data, BATCH, number, ranks))
        weights = rank.checkpoints.snapshot(rank.session)
        rank.run(0)
        reports += rank.said("validation")
    predicted = np.sum(weights["table"][held_back["ids"]] * weights["weights"], axis=1)
    assert sum(one["examples"] for one in reports) == given.validation_size
    loss_sum = sum(one["loss_sum"] for one in reports)
    assert loss_sum == pytest.approx(np.square(predicted - held_back["y"]).sum(), rel=1e-9)


def test_validation_every_few_steps_and_at_the_end() -> None:
    rank, plain = Rank(validate_steps=2), Rank()
    rank.run(6)
    plain.run(6)
    assert [report["step"] for report in rank.said("validation")] == [2, 4, 6]
    assert [report["step"] for report in plain.said("validation")] == [6]
    assert rank.losses == plain.losses


def _with_metrics() -> SingleDeviceGraph:
    """Its loss as a metric, too."""
    single = captured(optimizer="adam")
    assert single.validation_loss is not None
    sums = [MetricSums((name,), results=lambda _: {}) for name in (single.loss, single.validation_loss)]
    return dataclasses.replace(single, metrics=sums[0], validation_metrics=sums[1])


def test_sums_for_metrics_are_of_all_steps_since_the_last_report() -> None:
    rank = Rank(single=_with_metrics(), log_every=4)
    rank.run(6)
    assert [report["step"] for report in rank.reports] == [1, 4, 6]
    assert [report["metrics"] for report in rank.reports] == [
        [pytest.approx(sum(report["losses"]))] for report in rank.reports
    ]
    (said,) = rank.said("validation")
    assert said["metrics"] == [pytest.approx(said["loss_sum"] / BATCH)], "a sum over batches"


def test_without_metrics_reports_have_none() -> None:
    rank = Rank()
    rank.run(2)
    assert not any("metrics" in report for report in rank.control.reports)


def test_skipped_steps_add_nothing_to_metrics() -> None:
    rank = Rank(single=_with_metrics(), data=dataset(BATCH + 1, 3 * BATCH + 1), skip_nonfinite=True, log_every=2)
    rank.run(6)
    first, only_skipped, half_skipped, last = rank.reports
    assert first["metrics"] == [pytest.approx(first["losses"][0])]
    assert "metrics" not in only_skipped
    assert half_skipped["metrics"] == [pytest.approx(half_skipped["losses"][0])]
    assert last["metrics"] == [pytest.approx(sum(last["losses"]))]


def test_the_best_of_what_was_validated_is_kept(tmp_path: Path) -> None:
    rank = Rank(tmp_path, save_steps=1, validate_steps=2)
    assert rank.saver is not None
    rank.saver.keep = 1
    original = rank.control.report

    def report(kind: str, **fields: Any) -> None:  # As the driver does, when it has heard all ranks.
        original(kind, **fields)
        if kind == "validation":
            note_validated(tmp_path, fields["step"], {2: 0.5, 4: 0.2, 6: 0.7, 8: 0.9}[fields["step"]])

    rank.control.report = report  # type: ignore[method-assign]
    rank.run(8)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["model.ckpt-4", "model.ckpt-8"]
    best = best_checkpoint(tmp_path)
    assert best is not None
    assert best.name == "model.ckpt-4"


def test_without_examples_nothing_is_validated_and_old_checkpoints_go(tmp_path: Path) -> None:
    rank = Rank(tmp_path, save_steps=1, validate_steps=2, data=dataset(validation=0))
    assert rank.saver is not None
    rank.saver.keep = 1
    rank.run(8)
    assert rank.said("validation") == []
    assert [prefix.name for prefix in list_checkpoints(tmp_path)] == ["model.ckpt-8"]


def test_what_is_validated_is_saved(tmp_path: Path) -> None:
    rank = Rank(tmp_path, validate_steps=3)
    rank.run(7)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["model.ckpt-3", "model.ckpt-6", "model.ckpt-7"]


def test_a_model_without_validation_loss() -> None:
    rank = Rank(single=dataclasses.replace(captured(dense_model), validation_loss=None))
    rank.run(1)
    assert rank.said("validation") == []
