"""The SavedModel of a large model has links to the files of its checkpoint, and its export needs no memory for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import files_of
from parallax_runner.export import large_models, linked_checkpoint
from parallax_runner.export.linked_checkpoint import is_large, untouched_zeros
from parallax_runner.graph.single_device_graph import Variable
from tests.single.export.serving import BATCH, DATASET, ROWS, WIDTH, Features, exported, served, train

LARGE_BYTES = 512 << 20


@pytest.fixture(autouse=True)
def every_model_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_models, "LEAST_LINKED_BYTES", 0)


def lookup(features: Features, pieces: int) -> dict[str, Any]:
    partitioner = tf.fixed_size_partitioner(pieces) if pieces > 1 else None
    table = tf.get_variable("table", [ROWS, WIDTH], partitioner=partitioner, use_resource=True)
    scale = tf.get_variable("scale", [], use_resource=True)
    score = scale * tf.reduce_sum(tf.nn.embedding_lookup(table, features["ids"]), axis=1)
    loss = tf.reduce_mean(tf.square(score - features["y"]))
    return {"loss": loss, "train_op": train(loss), "outputs": {"score": score}}


@pytest.mark.parametrize("most_read_bytes", [0, linked_checkpoint.MOST_READ_BYTES])
@pytest.mark.parametrize("pieces", [1, 3])
def test_the_checkpoint_is_served(
    pieces: int, most_read_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linked_checkpoint, "MOST_READ_BYTES", most_read_bytes)
    folder, expected = exported(lambda features: lookup(features, pieces), tmp_path)
    ids = DATASET.validation_batch(0, BATCH)["ids"]
    np.testing.assert_array_equal(served(folder, ids=ids)["score"], expected["score"])
    np.testing.assert_array_equal(served(folder, ids=ids[:1])["score"], expected["score"][:1])
    originals = files_of(tmp_path / "ckpt" / "model.ckpt-3")
    links = files_of(folder / "variables" / "variables")
    assert len(links) == len(originals) > 1
    assert all(link.samefile(original) for link, original in zip(links, originals, strict=True))


def test_a_model_that_is_not_large_has_values_without_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_models, "LEAST_LINKED_BYTES", ROWS * WIDTH * 4 + 4)
    folder, _ = exported(lambda features: lookup(features, 1), tmp_path)
    stored = dict(tf.train.list_variables(str(folder / "variables" / "variables")))
    assert stored == {"table": [ROWS, WIDTH], "scale": []}


def test_zeros_of_a_variable_need_memory_only_where_they_are_used() -> None:
    shape = (LARGE_BYTES // 256, 64)
    table = Variable("table", shape, "float32", "", True, "table", shape, (0, 0))
    assert is_large(table)
    with tf.Graph().as_default():
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=shape)
        assign = tf.raw_ops.AssignVariableOp(resource=handle, value=untouched_zeros(table, "zeros"))
        gathered = tf.raw_ops.ResourceGather(resource=handle, indices=[0, shape[0] - 1], dtype=tf.float32)
        with tf.Session() as session:
            before_bytes = psutil.Process(os.getpid()).memory_info().rss
            session.run(assign)
            assert not session.run(gathered).any()
            grown_bytes = psutil.Process(os.getpid()).memory_info().rss - before_bytes
    assert grown_bytes < LARGE_BYTES // 8
