"""Inserts the new keys of all ranks into the map of each rank of the reference, before the ranks look them up.

A vocabulary that grows numbers the new keys of a step in ascending order, whichever rank has seen them. The reference
gives each rank a map of its own, so each rank must insert the keys of all ranks at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph.growing.key_map import MapHandles
from parallax_runner.graph.growing.marks import KeyCall, key_calls

NO_KEYS = np.zeros([0], np.int64)


class RankKeys:
    """The keys that the graph of one rank inserts."""

    def __init__(self, graph: tf.Graph) -> None:
        calls = [call for call in key_calls(graph.get_operations()) if call.write is not None]
        self._own = [call.keys for call in calls]
        self._fed = [_fed(call) for call in calls]
        self._writes = [call.write for call in calls]
        overflows = {call.handles.overflow.op.name: call.handles.overflow for call in calls}
        self._overflows = {
            name: tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64) for name, handle in overflows.items()
        }

    def of(self, session: tf.Session, feeds: Mapping[Any, Any]) -> list[np.ndarray]:
        """Returns the keys of a batch (int64 [n]), for each op that inserts keys."""
        found: list[np.ndarray] = session.run(self._own, feeds)
        return found

    def insert(
        self, session: tf.Session, feeds: Mapping[Any, Any], keys: Sequence[np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Inserts keys, those of the first op first. `feeds` is a batch, because an op can wait for others.

        Returns the counts of keys without a place by the names of their variables. They must be set again after the
        step, because the step counts these keys once more on every rank.
        """
        for at, write in enumerate(self._writes):
            given = {fed: keys[at] if place == at else NO_KEYS for place, fed in enumerate(self._fed)}
            session.run(write, {**feeds, **given})
        counts: dict[str, np.ndarray] = session.run(self._overflows)
        return counts


def joined(of_ranks: Sequence[Sequence[np.ndarray]], shares: Sequence[float]) -> list[np.ndarray]:
    """Returns the keys of all ranks that have examples, for each op."""
    return [
        np.concatenate([one for one, share in zip(keys, shares, strict=True) if share])
        for keys in zip(*of_ranks, strict=True)
    ]


def _fed(call: KeyCall) -> tf.Tensor:
    """Makes the keys of an op a tensor of any length that can be fed."""
    fed = tf.placeholder_with_default(call.keys, [None])
    call.op._update_input(len(MapHandles._fields), fed)
    return fed
