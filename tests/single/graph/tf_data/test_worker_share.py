"""One worker's part of each step, at any position."""

from __future__ import annotations

import pytest
import tensorflow as tf

from parallax_runner.data.shares import SHARE
from parallax_runner.errors import DataError
from parallax_runner.graph.tf_data.tf_dataset import TfDataset
from parallax_runner.graph.tf_data.worker_share import WorkerShare


def share(rank: int, ranks: int, replicas: int = 1, examples: int = 7) -> WorkerShare:
    return WorkerShare(TfDataset.of(tf.data.Dataset.range(examples).batch(4)), rank, ranks, replicas)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_each_replica_gets_every_nth_example_and_its_share(rank: int) -> None:
    """Steps have 4 and 3 examples, for three workers with two replicas each."""
    read = share(rank, 3, replicas=2)
    for position, examples in ((0, [0, 1, 2, 3]), (4, [4, 5, 6]), (8, [0, 1, 2, 3])):
        batches = read.train_batches(position)
        for number, batch in zip((rank, rank + 3), batches, strict=True):
            own = examples[number::6]
            assert batch[SHARE] == pytest.approx(6 * len(own) / len(examples))
            assert batch["x"].tolist() == own or (not own and len(batch["x"]) == 1)


def test_an_earlier_position_is_read_again() -> None:
    read = share(1, 2)
    assert [read.train_batches(position)[0]["x"].tolist() for position in (4, 0, 4)] == [[5], [1, 3], [5]]


def test_equal_parts_have_no_share() -> None:
    (batch,) = WorkerShare(TfDataset.of(tf.data.Dataset.range(8).batch(4)), 1, 2, 1).train_batches(4)
    assert batch["x"].tolist() == [5, 7] and batch.get(SHARE, 1.0) == 1.0


def test_data_that_has_become_shorter() -> None:
    data = TfDataset.of(tf.data.Dataset.range(7).batch(4)).with_pass_steps(3, 12)
    read = WorkerShare(data, 0, 2, 1)
    with pytest.raises(DataError, match="the data ended before batch 3 of 3 in pass 1: it has changed"):
        read.train_batches(8)
