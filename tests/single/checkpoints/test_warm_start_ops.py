"""The ops of a warm start assign what is taken, however the variables are stored, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.warm_start import Taken, WarmStart
from parallax_runner.checkpoints.warm_start_ops import WarmStartOps
from parallax_runner.rewrite.passes import rewrite_for_rank
from tests.single.small_models import ROWS, WIDTH, Features, captured, lookup_model, on_one_device, planned


def values_after(comm: str, partitions: int, pieces: int, start: WarmStart | None) -> dict[str, np.ndarray]:
    """Returns the first values of a model whose table the user's own partitioner splits into `pieces`."""

    def model(features: Features) -> Any:
        return lookup_model(features, pieces=pieces)

    single = captured(model, optimizer="adam")
    distributed = rewrite_for_rank(single, planned(single, comm, workers=1, partitions=partitions), rank=0, seed=1)
    reads = CheckpointOps(distributed)
    ops = None if start is None else WarmStartOps(distributed, start, Path())
    graph = on_one_device(distributed.graph)
    with tf.Session(graph=graph) as session:
        session.run(distributed.initialize.name)
        if ops is not None:
            for owner, name in ((ops, "_prefix"), (ops, "_assign_by_keys"), (ops.restoring, "prefix")):
                setattr(owner, name, graph.as_graph_element(getattr(owner, name).name))
            ops.restoring.others = graph.as_graph_element(ops.restoring.others.name)
            assert not ops.restoring.tables
            ops.run(session)
        found: dict[str, np.ndarray] = {}
        values = session.run([graph.as_graph_element(value.name) for value in reads.values])
        for part, value in zip(reads.slices, values, strict=True):
            found.setdefault(part.name, np.empty(part.full_shape, value.dtype))[part.where] = value
        return found


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A checkpoint of plain TensorFlow with a table in float64 and a vector."""
    with tf.Graph().as_default(), tf.Session() as session:
        table = tf.get_variable("words", initializer=np.arange(ROWS * WIDTH, dtype=np.float64).reshape(ROWS, WIDTH))
        weights = tf.get_variable("weights", initializer=np.full(WIDTH, 7.0, np.float32))
        session.run([table.initializer, weights.initializer])
        return Path(tf.train.Saver([table, weights]).save(session, str(tmp_path / "theirs"), write_meta_graph=False))


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(("comm", "partitions"), [("local", 1), ("ps", 1), ("ps", 4), ("hybrid", 2)])
def test_what_is_taken_is_in_its_rows(comm: str, partitions: int, pieces: int, theirs: Path) -> None:
    taken = (Taken("table", "words", "float64"), Taken("weights", "weights", "float32"))
    found = values_after(comm, partitions, pieces, WarmStart(str(theirs), taken, (), ()))
    np.testing.assert_array_equal(found["table"], np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH))
    np.testing.assert_array_equal(found["weights"], np.full(WIDTH, 7.0))
    before = values_after(comm, partitions, pieces, None)
    assert set(found) == set(before)
    for name in set(found) - {"table", "weights"}:
        np.testing.assert_array_equal(found[name], before[name])
