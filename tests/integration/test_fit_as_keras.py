"""What callbacks of `fit` see and write, and what its arguments do, compared with plain Keras in float64."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.util.event_pb2 import Event

from tests.integration.test_fit import run

SCRIPT = Path(__file__).parent / "scripts" / "train_as_keras.py"
WEIGHTED = Path(__file__).parent / "scripts" / "train_weighted.py"
# One phrase of each note on a loss (graph/traced/loss_notes.py).
NOTES = ("is a sum over examples", "is masked", "divides by the sum of weights")


def train(folder: Path, case: str) -> tuple[Path, Path]:
    """Returns the folders in which plain Keras and two workers leave their results and their output."""
    folders = folder / "plain", folder / "sharded"
    for each in folders:
        each.mkdir()
        done = run(SCRIPT, case, each.name, str(each), cwd=each)
        assert done.returncode == 0, done.stderr
        (each / "stdout").write_text(done.stdout)
        (each / "stderr").write_text(done.stderr)
    return folders


def left_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "left.json").read_text())
    return found


def expect_equal(found: Any, expected: Any, where: str = "", *, rel: float = 1e-9) -> None:
    """Checks structures and texts for equality, and floats within `rel`, by default the rounding of float64."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            expect_equal(found[key], expected[key], f"{where}.{key}", rel=rel)
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            expect_equal(one, other, f"{where}[{number}]", rel=rel)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=rel, abs=1e-12), where
    else:
        assert found == expected, where


def rows_of(path: Path, separator: str) -> list[dict[str, float]]:
    with open(path, newline="", encoding="utf-8") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file, delimiter=separator)]


def scalars_in(folder: Path) -> dict[str, dict[str, float]]:
    """Returns the values in the event files of a folder, by tag and step."""
    found: dict[str, dict[str, float]] = {}
    for record in tf.data.TFRecordDataset([str(path) for path in sorted(folder.glob("events.*"))]):
        event = Event.FromString(record.numpy())
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "scalars":
                found.setdefault(value.tag, {})[str(event.step)] = float(tf.make_ndarray(value.tensor))
    return found


def test_callbacks_see_and_write_what_they_do_in_keras(tmp_path: Path) -> None:
    """Two calls, the second with `initial_epoch`, with a callback of each kind."""
    plain, sharded = train(tmp_path, "callbacks")
    expected, found = left_in(plain), left_in(sharded)
    # The case is one only if the plateau is reached, and if restored weights differ from those of the last epoch.
    assert len(set(expected["histories"][0]["learning_rate"])) > 3
    assert expected["epochs"][1][-1] < 19
    assert expected["evaluated"]["loss"] == pytest.approx(expected["histories"][1]["val_loss"][0], rel=1e-9)
    expect_equal(found, expected)
    for name, separator in (("first.csv", ","), ("second.csv", ";")):
        rows = rows_of(sharded / name, separator)
        expect_equal(rows, rows_of(plain / name, separator), name)
    for part in ("train", "validation"):
        tags = scalars_in(plain / "events" / part)
        assert len(tags) >= 3
        found_tags = scalars_in(sharded / "events" / part)
        assert found_tags.keys() == tags.keys()
        for tag, values in tags.items():
            assert found_tags[tag].keys() == values.keys(), tag
            np.testing.assert_allclose(list(found_tags[tag].values()), list(values.values()), rtol=1e-6, err_msg=tag)


def test_arguments_do_what_they_do_in_keras(tmp_path: Path) -> None:
    """Four calls: steps_per_epoch, initial_epoch, class_weight, sample_weight and validation_freq, of arrays and of
    endless datasets, which begin again in each call, with an optimizer that averages weights."""
    expected, found = map(left_in, train(tmp_path, "arguments"))
    assert expected["epochs"] == [[1, 2, 3, 4], [0, 1, 2], [0, 1], [0, 1]]
    assert [len(each["val_loss"]) for each in expected["histories"]] == [2, 1, 2, 2]
    expect_equal(found, expected)


def test_an_optimizer_that_accumulates_gradients_and_clips_their_sum(tmp_path: Path) -> None:
    """Eight steps an epoch, of which three make an update, so that an update has steps of two epochs."""
    plain, sharded = train(tmp_path, "accumulation")
    expect_equal(left_in(sharded), left_in(plain))
    expect_equal(rows_of(sharded / "accumulated.csv", ","), rows_of(plain / "accumulated.csv", ","))


def test_validation_data_in_another_form_and_less_output(tmp_path: Path) -> None:
    """Two calls with arrays: a validation by a part of a dataset, with a line per epoch, and one by a part of arrays,
    with no output."""
    plain, sharded = train(tmp_path, "validation")
    expect_equal(left_in(sharded), left_in(plain))
    _, first, second = (sharded / "stderr").read_text().split("call\n")
    assert [line.partition(":")[0] for line in first.splitlines()] == ["epoch 1/2", "epoch 2/2"]
    assert second == (sharded / "stdout").read_text() == ""


def test_an_epoch_that_begins_with_a_stop_has_one_step(tmp_path: Path) -> None:
    """Three calls: a stop before the last epoch, before a middle epoch and before the first epoch. The first two
    validate after a list of epochs."""
    expected, found = map(left_in, train(tmp_path, "stops"))
    assert expected["epochs"] == [[0, 1, 2, 3], [3, 4, 5], [0]]
    assert [len(each["val_loss"]) for each in expected["histories"]] == [2, 1, 1]
    steps = [call[-1][1] for call in expected["calls"] if call[0] == "train_end"]
    assert steps == [25, 42, 43]  # three epochs of 8 steps and 1 step, two epochs and 1 step, 1 step
    expect_equal(found, expected)


def test_weights_and_masks_that_are_not_equal_on_all_workers(tmp_path: Path) -> None:
    """One worker has small weights or short sequences. If a loss divides by a number that is the same for all workers,
    the result equals the result of plain Keras. Otherwise the loss is the mean of the workers' losses, and a note says
    so."""
    left, told = {}, {}
    for comm in ("plain", "sharded"):
        done = run(WEIGHTED, comm, str(tmp_path / comm), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        left[comm] = json.loads((tmp_path / comm).read_text())
        told[comm] = dict(call.split("\n", 1) for call in done.stderr.split("call ")[1:])
    expected, found = left["plain"], left["sharded"]
    for case in expected:
        expect_equal(found[case]["history"], expected[case]["history"], case)
        np.testing.assert_allclose(found[case]["change"], expected[case]["change"], rtol=1e-9, atol=1e-12, err_msg=case)
    assert {case: [word for word in NOTES if word in text] for case, text in told["sharded"].items()} == {
        case: [] for case in expected
    }
