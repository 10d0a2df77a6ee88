"""The graphs of all ranks in one plain session: all devices taken away, so that it holds workers and servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from tests.single.small_models import BATCH, ROWS, WIDTH, on_one_device, planned

Values = dict[str, np.ndarray]


def batch(number: int) -> Values:
    draw = np.random.default_rng(number)
    return {
        "ids": draw.integers(0, ROWS, BATCH).astype(np.int32),
        "x": draw.normal(size=(BATCH, WIDTH)),
        "y": draw.normal(size=BATCH),
    }


class OneDevice:
    """The graphs of all ranks in one session; not for collectives."""

    def __init__(self, *ranks: DistributedGraph) -> None:
        self.ranks = ranks
        self.graph = on_one_device(*(rank.graph for rank in ranks))
        with self.graph.as_default():
            self.reads = [
                {
                    variable.name: [
                        tf.raw_ops.ReadVariableOp(resource=self.there(number, piece.handle), dtype=variable.dtype)
                        for piece in variable.pieces
                    ]
                    for variable in rank.variables
                }
                for number, rank in enumerate(ranks)
            ]
        # A rank that waits for what nobody says is to fail, not to hang.
        # Threads of its own: those that all sessions share are as few as the process's first session wanted.
        config = tf.ConfigProto(
            operation_timeout_in_ms=120_000, use_per_session_threads=True, inter_op_parallelism_threads=4
        )
        self.session = tf.Session(graph=self.graph, config=config)
        # Ops that have run once are optimized away for good where a graph may still change.
        self.graph.finalize()

    def there(self, rank: int, element: Any) -> Any:
        prefix = f"rank{rank}/" if len(self.ranks) > 1 else ""
        return self.graph.as_graph_element(prefix + element.name)

    def initialize(self) -> None:
        self.session.run([self.there(number, rank.initialize) for number, rank in enumerate(self.ranks)])

    def fed(self, batches: Sequence[Values]) -> dict[tf.Tensor, np.ndarray]:
        return {
            self.there(number, rank.features[0][name]): values[name]
            for number, (rank, values) in enumerate(zip(self.ranks, batches, strict=True))
            for name in values
        }

    def step(self, batches: Sequence[Values]) -> list[float]:
        fetches = [(self.there(n, rank.loss), self.there(n, rank.train_op)) for n, rank in enumerate(self.ranks)]
        return [loss for loss, _ in self.session.run(fetches, self.fed(batches))]

    def variables(self, rank: int = 0) -> Values:
        parts = self.session.run(self.reads[rank])
        found = {}
        for variable in self.ranks[rank].variables:
            found[variable.name] = whole = np.empty(variable.shape, variable.dtype.as_numpy_dtype)
            for piece, rows in zip(variable.pieces, parts[variable.name], strict=True):
                whole[piece.where] = rows
        return found


def graph_of(single: SingleDeviceGraph, comm: str, *, skip_nonfinite: bool = False, **options: Any) -> OneDevice:
    """All ranks of a plan; `workers` is 1 unless given."""
    plan = planned(single, comm, **({"workers": 1} | options))
    ranks = range(plan.workers)
    return OneDevice(
        *(rewrite_for_rank(single, plan, rank=rank, seed=1, skip_nonfinite=skip_nonfinite) for rank in ranks)
    )


def assert_same(found: Values, expected: Values, tolerance: float = 0) -> None:
    assert expected and set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)
