"""What identifies a tf.data.Dataset: its first examples without the shuffles, and the seeds of the shuffles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.config.frozen import from_plain
from parallax_runner.data.identity import Contents, difference_in, identity_of
from parallax_runner.graph.tf_data.tf_dataset import TfDataset

ROWS = np.arange(200.0)


def examples(rows: np.ndarray = ROWS) -> Any:
    return tf.data.Dataset.from_tensor_slices({"x": rows})


def identity(train: Any, validation: Any = None, **more: Any) -> Contents:
    return identity_of(from_plain({"data": {}}), TfDataset.of(train, validation, **more))


def doubled(batch: Any) -> Any:
    return {"x": batch["x"] * 2}


SAME: dict[str, Callable[[int, int], Any]] = {
    "batched": lambda batch, seed: examples().shuffle(50, seed=seed).batch(batch).prefetch(2),
    "batched first": lambda batch, seed: examples().batch(batch, drop_remainder=True).shuffle(5, seed=seed),
    "mapped later": lambda batch, seed: examples().cache().shuffle(50, seed=seed).batch(batch).map(doubled),
    "endless": lambda batch, seed: examples().shuffle(50, seed=seed).repeat().batch(batch),
    "ragged": lambda batch, seed: (
        tf.data.Dataset.from_tensor_slices({"x": tf.RaggedTensor.from_row_lengths(ROWS, [1, 3] * 50)})
        .shuffle(50, seed=seed)
        .batch(batch)
        .map(doubled)
    ),
    "sparse": lambda batch, seed: (
        tf.data.Dataset.from_tensor_slices({"x": tf.sparse.from_dense(ROWS.reshape(50, 4))})
        .batch(batch)
        .shuffle(5, seed=seed)
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_seeds_and_batches_do_not_change_the_examples(name: str) -> None:
    one, other = identity(SAME[name](8, 1)), identity(SAME[name](16, 2))
    assert one.training["first examples"] == other.training["first examples"]
    assert difference_in(one, other) == "training data (the order of the examples differs)"
    assert identity(SAME[name](8, 1)) == one


@pytest.mark.parametrize("name", ["batched", "mapped later"])
def test_other_numbers_are_other_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = identity(SAME[name](8, 1))
    monkeypatch.setitem(globals(), "ROWS", ROWS + 1)
    monkeypatch.setattr(examples, "__defaults__", (ROWS,))
    other = identity(SAME[name](8, 1))
    assert difference_in(one, other) == "training data (the first examples differ)"


def test_the_number_of_examples_is_compared_for_the_same_batches_only() -> None:
    assert identity(examples().batch(8)).training["examples"] == "200"
    assert identity(examples().batch(32)).training["examples"] == "200"
    in_batches = identity(examples().batch(32, drop_remainder=True).map(doubled)).training
    assert in_batches["examples in batches of 32"] == "192" and "examples" not in in_batches
    assert "examples" not in identity(examples().repeat().batch(8)).training


def test_files_may_move(tmp_path: Path) -> None:
    found = []
    for folder, content in (("a", "1\n2\n3\n"), ("b", "1\n2\n3\n"), ("c", "1\n2\n4\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows").write_text(content)
        lines = tf.data.TextLineDataset([str(tmp_path / folder / "rows")])
        found.append(identity(lines.map(lambda line: {"x": tf.strings.to_number(line)}).batch(2)))
    assert found[0] == found[1] and found[0].training != found[2].training


def test_a_cache_in_a_file_is_left_alone(tmp_path: Path) -> None:
    identity(examples().cache(str(tmp_path / "cache")).batch(8))
    assert list(tmp_path.iterdir()) == []


def test_validation_examples_are_compared_too() -> None:
    one, other = (identity(examples().batch(8), examples(rows).batch(8)) for rows in (ROWS, ROWS + 1))
    assert difference_in(one, other) == "validation data (the first examples differ)"


def test_a_generator_is_not_read() -> None:
    def rows() -> Any:
        raise AssertionError("read")
        yield

    signature = {"x": tf.TensorSpec([], tf.float32)}
    generator = tf.data.Dataset.from_generator(rows, output_signature=signature).repeat().batch(8)
    dataset = TfDataset.of(generator, exact=False)
    found = identity_of(from_plain({"data": {"resume": "approximate"}}), dataset)
    assert found == Contents({"features": "x float32 []"})
