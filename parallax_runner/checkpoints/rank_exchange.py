"""Exchanges bytes and short messages among all ranks, without the session that trains."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.part_files import session_beside_training
from parallax_runner.checkpoints.row_blocks import aligned_bytes

# Each backend can send ids, which are integers of this dtype.
CARRIER = np.dtype(np.int32)


class RankLost(Exception):
    """A rank no longer takes part in the exchanges."""


class Exchange(ABC):
    """An exchange among all ranks. All ranks must make the same calls in the same order."""

    @abstractmethod
    def swap(self, messages: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Sends message r (uint8 [n]) to rank r. Returns the message from each rank, which may end with up to three
        more bytes."""

    @abstractmethod
    def tell(self, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Sends the fields to all ranks. Returns the fields of each rank."""


class OneRank(Exchange):
    """The exchange of a process that has no other ranks to write with."""

    def swap(self, messages: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the process's own message."""
        return list(messages)

    def tell(self, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Returns the process's own fields."""
        return [dict(fields)]


class RankExchange(Exchange):
    """Exchanges data with the other ranks. All ranks must make the same calls in the same order.

    The calls raise RankLost if a rank no longer takes part.
    """

    def __init__(self, ranks: int) -> None:
        from parallax_runner.collectives import ops as collectives

        graph = tf.Graph()
        with graph.as_default():
            self._sent = tf.placeholder(tf.int32, [None])
            self._counts = tf.placeholder(tf.int32, [ranks])
            self._came = collectives.all_to_all(self._sent, self._counts, name="parallax_checkpoint_rows")
            self._told = collectives.concat_over_ranks(self._sent, name="parallax_checkpoint_message")
        self._session = session_beside_training(graph)
        self.ranks = ranks

    def swap(self, messages: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Sends message r (uint8 [n]) to rank r. Returns the message from each rank, which may end with up to three
        more bytes."""
        counts = [-(-len(message) // CARRIER.itemsize) for message in messages]
        sent = aligned_bytes(sum(counts) * CARRIER.itemsize)
        begin = 0
        for message, count in zip(messages, counts, strict=True):
            sent[begin : begin + len(message)] = message
            begin += count * CARRIER.itemsize
        feeds = {self._sent: sent.view(CARRIER), self._counts: np.array(counts, np.int32)}
        came, sizes = self._run(self._came, feeds)
        ends = np.cumsum(sizes) * CARRIER.itemsize
        return np.split(came.view(np.uint8), ends[:-1])

    def tell(self, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Sends the fields to all ranks. Returns the fields of each rank."""
        text = json.dumps(fields).encode()
        line = text + b" " * (-(len(text) + 1) % CARRIER.itemsize) + b"\n"
        came = self._run(self._told, {self._sent: np.frombuffer(line, CARRIER)})
        return [json.loads(line) for line in came.tobytes().splitlines()]

    def _run(self, fetches: Any, feeds: dict[tf.Tensor, Any]) -> Any:
        try:
            return self._session.run(fetches, feeds)
        except tf.errors.OpError as error:
            raise RankLost(str(error.message)) from error
