"""Inserts the new keys of all ranks into the map of each rank of the reference, before the ranks look them up.

A vocabulary that grows numbers the new keys of a step in ascending order, whichever rank has seen them. The reference
gives each rank a map of its own, so each rank must insert the keys of all ranks at once. What it computes afterwards
for the same step must neither count keys again nor insert any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph.growing.marks import KeyCall, key_calls


class RankKeys:
    """The keys that the graph of one rank inserts."""

    def __init__(self, graph: tf.Graph) -> None:
        calls = [call for call in key_calls(graph.get_operations()) if call.write is not None]
        self._own = [call.keys for call in calls]
        self._fed = [_Fed.of(call) for call in calls]
        self._writes = [call.writes for call in calls]
        self._evicts = [call.table.shape.evicts for call in calls]

    def of(self, session: tf.Session, feeds: Mapping[Any, Any]) -> list[np.ndarray]:
        """Returns the keys of a batch (int64 [n]), for each op that inserts keys."""
        found: list[np.ndarray] = session.run(self._own, feeds)
        return found

    def insert(self, session: tf.Session, feeds: Mapping[Any, Any], keys: Sequence[np.ndarray]) -> None:
        """Inserts keys, those of the first op first. `feeds` is a batch, because an op can wait for others. The step of
        the tables goes on until `end_step`, because keys that leave after it would change what its lookups find."""
        for fed, writes, given in zip(self._fed, self._writes, keys, strict=True):
            session.run(writes, {**feeds, fed.keys: given, fed.times: np.ones_like(given)})

    def end_step(self, session: tf.Session, feeds: Mapping[Any, Any]) -> None:
        """Ends the step of the tables, after which keys may leave. `feeds` is a batch."""
        nothing = np.zeros([0], np.int64)
        for fed, writes, evicts in zip(self._fed, self._writes, self._evicts, strict=True):
            if evicts:
                session.run(writes, {**feeds, fed.keys: nothing, fed.times: nothing, fed.is_step: True})


def joined(of_ranks: Sequence[Sequence[np.ndarray]], shares: Sequence[float]) -> list[np.ndarray]:
    """Returns the keys of all ranks that have examples, for each op."""
    return [
        np.concatenate([one for one, share in zip(keys, shares, strict=True) if share])
        for keys in zip(*of_ranks, strict=True)
    ]


@dataclass(frozen=True)
class _Fed:
    """What an op that inserts keys can be fed. By default, it looks up its own keys, and changes nothing."""

    keys: tf.Tensor
    times: tf.Tensor
    is_step: tf.Tensor

    @classmethod
    def of(cls, call: KeyCall) -> _Fed:
        """Makes the inputs of an op tensors that can be fed. Those of keys can have any length."""
        own = call.keys
        fed = cls(
            tf.placeholder_with_default(own, [None]),
            tf.placeholder_with_default(tf.zeros_like(own), [None]),
            tf.placeholder_with_default(False, []),
        )
        call.feed(fed.keys, fed.times, fed.is_step)
        return fed
