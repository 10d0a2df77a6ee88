"""Starts the threads that fill the queues of TensorFlow 1's input pipelines, as `tf.train.MonitoredSession` does."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.train.step_runner import StepRunner


def start_queue_runners(graph: tf.Graph, steps: StepRunner) -> tf.train.Coordinator:
    """Starts the queue runners of the script's graph once for each replica. Returns the coordinator that stops the
    queue runners."""
    distributed, coordinator = steps.distributed, tf.train.Coordinator()
    with distributed.graph.as_default():
        for runner in graph.get_collection(tf.GraphKeys.QUEUE_RUNNERS):
            for prefix in distributed.prefixes:
                own = tf.train.QueueRunner.from_proto(runner.to_proto(), import_scope=prefix.rstrip("/"))
                own.create_threads(steps.session, coordinator, daemon=True, start=True)
    return coordinator
