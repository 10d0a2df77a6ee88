"""The ids that a trial fetches are those that each rank would look up."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.train.feed import Feed
from parallax_runner.worker.row_trial.touched import ids_by_variable
from tests.single.small_models import (
    BATCH,
    FEATURES,
    ROWS,
    WIDTH,
    Features,
    captured,
    dense_model,
    lookup_model,
    planned,
)


class Numbered:
    """A dataset whose example number i looks up row i."""

    features: ClassVar = FEATURES

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        return {
            "ids": (np.arange(start, start + size) % ROWS).astype(np.int32),
            "x": np.ones((size, WIDTH)),
            "y": np.ones(size),
        }


def sampled_model(features: Features) -> tf.Tensor:
    """Looks up what is fed, and rows that each rank draws for itself."""
    drawn = tf.random.uniform([3], 0, ROWS, tf.int32)
    table = tf.get_variable("drawn_from", [ROWS, WIDTH], tf.float64)
    return lookup_model(features) + tf.reduce_sum(tf.nn.embedding_lookup(table, drawn))


@pytest.fixture
def opened() -> list[int]:
    """The ranks whose sessions were opened."""
    return []


@pytest.fixture
def ids_of(opened: list[int]) -> Callable[..., dict[str, list[list[np.ndarray]]]]:
    def open_session(distributed: DistributedGraph) -> tf.Session:
        opened.append(distributed.rank)
        session = tf.Session(graph=distributed.graph)
        session.run(distributed.initialize)
        return session

    def ids(model: Callable[[Features], tf.Tensor], *, ranks: int, steps: int) -> dict[str, list[list[np.ndarray]]]:
        single = captured(model)
        return ids_by_variable(
            single,
            planned(single, "local"),
            [Feed(Numbered(), BATCH, rank, ranks) for rank in range(ranks)],
            steps=steps,
            seed=1,
            open_session=open_session,
        )

    return ids


def test_ids_that_are_fed_are_those_of_each_ranks_batches(ids_of: Callable, opened: list[int]) -> None:
    found = ids_of(lookup_model, ranks=3, steps=2)
    assert set(found) == {"table"}
    assert [len(ranks) for ranks in found["table"]] == [3, 3]
    for step, ranks in enumerate(found["table"]):
        for rank, ids in enumerate(ranks):
            first = (step * 3 + rank) * BATCH
            np.testing.assert_array_equal(ids, np.arange(first, first + BATCH) % ROWS)
    assert opened == [0], "one session will do"


def test_each_rank_draws_for_itself(ids_of: Callable, opened: list[int]) -> None:
    found = ids_of(sampled_model, ranks=2, steps=6)
    assert set(found) == {"table", "drawn_from"}
    assert opened == [0, 1]
    by_rank = [[found["drawn_from"][step][rank].tolist() for step in range(6)] for rank in range(2)]
    assert by_rank[0] != by_rank[1]
    assert len(set(map(tuple, by_rank[0]))) > 1
    assert all(len(ids) == 3 for ids in by_rank[0])


def test_a_dense_model_touches_no_rows(ids_of: Callable) -> None:
    assert ids_of(dense_model, ranks=2, steps=1) == {}
