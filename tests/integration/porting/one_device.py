"""Replaces `parallax` when a driver runs on one device, in a plain session: the reference for its losses."""

from __future__ import annotations

import types

import tensorflow.compat.v1 as tf

from parallax_runner import (  # noqa: F401 - for the drivers
    CheckPointConfig,
    CommunicationConfig,
    Config,
    MPIConfig,
    ProfileConfig,
    PSConfig,
)

shard = types.SimpleNamespace(shard=lambda dataset: dataset)


def get_partitioner(_: int) -> None:
    """Splits nothing."""


class Session:
    """Returns each value as a list of one, like a worker with one replica."""

    def __init__(self, graph: tf.Graph) -> None:
        config = tf.ConfigProto(allow_soft_placement=True)
        with graph.as_default():
            self._session = tf.train.MonitoredSession(tf.train.ChiefSessionCreator(config=config))

    def run(self, fetches: dict, feed_dict: dict | None = None) -> dict:
        fed = {key: value[0] for key, value in (feed_dict or {}).items()}
        return {key: [value] for key, value in self._session.run(fetches, fed).items()}


def parallel_run(graph: tf.Graph, *_: object, **__: object) -> tuple[Session, int, int, int]:
    return Session(graph), 1, 0, 1
