"""Starts the threads that fill the queues of TensorFlow 1's input pipelines, as `tf.train.MonitoredSession` does."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.api.training import Training


def start_queue_runners(graph: tf.Graph, training: Training) -> None:
    """Starts those of the script's graph once for each replica; `training.coordinator` stops them."""
    distributed = training.distributed
    with distributed.graph.as_default():
        for runner in graph.get_collection(tf.GraphKeys.QUEUE_RUNNERS):
            for prefix in distributed.prefixes:
                own = tf.train.QueueRunner.from_proto(runner.to_proto(), import_scope=prefix.rstrip("/"))
                own.create_threads(training.tf_session, training.coordinator, daemon=True, start=True)
