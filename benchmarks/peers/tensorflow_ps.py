"""A peer with TensorFlow's own parameter servers and `SyncReplicasOptimizer`. Each worker and server is a process.

`python -m benchmarks.peers.tensorflow_ps --job worker --index 0 --workers HOST:PORT,… --servers … --steps 100`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from benchmarks.peers.single_device import Training, session_config
from benchmarks.peers.task import cluster_parser, leave

# Tables with at least this many rows are split into one piece per server.
LARGE_ROWS = 10_000


def main() -> None:
    """Trains as one worker, or serves until the process is ended."""
    made = cluster_parser(__doc__, "worker", "ps")
    made.add_argument("--plain", action="store_true", help="whole tables, and TensorFlow 2's kind of variables")
    arguments = made.parse_args()
    if not arguments.plain:
        # Reference variables, the default in TensorFlow 1. A step reads each of them once, even if it uses them often.
        tf.disable_resource_variables()
    cluster = tf.train.ClusterSpec({"worker": arguments.workers, "ps": arguments.servers})
    server = tf.train.Server(cluster, job_name=arguments.job, task_index=arguments.index, config=session_config())
    if arguments.job == "ps":
        server.join()
    training = Training(arguments, rank=arguments.index, size=len(arguments.workers))
    with tf.Graph().as_default(), tf.device(_placement(arguments.index, cluster, len(arguments.servers))):
        optimizers: list[tf.train.SyncReplicasOptimizer] = []

        def synchronous(optimizer: tf.train.Optimizer) -> tf.train.Optimizer:
            optimizers.append(tf.train.SyncReplicasOptimizer(optimizer, replicas_to_aggregate=training.size))
            return optimizers[0]

        with tf.variable_scope("", custom_getter=None if arguments.plain else _in_pieces(len(arguments.servers))):
            returned = training.build(synchronous)
        is_chief = arguments.index == 0
        hook = optimizers[0].make_session_run_hook(is_chief, num_tokens=0)
        with tf.train.MonitoredTrainingSession(
            server.target,
            is_chief=is_chief,
            hooks=[hook],
            config=_with_filters(arguments.index),
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            log_step_count_steps=None,
        ) as session:
            training.train(session, returned["loss"], returned["train_op"])
            leave()  # closing the session would wait for workers that have ended


def _placement(index: int, cluster: tf.train.ClusterSpec, servers: int) -> Any:
    """Puts variables on the servers and everything else on this worker."""
    return tf.train.replica_device_setter(
        cluster=cluster, worker_device=f"/job:worker/task:{index}", ps_strategy=FewestBytes(servers)
    )


class FewestBytes:
    """Puts each variable on the server with the fewest bytes so far, like the greedy strategy of `tf.contrib`."""

    def __init__(self, servers: int) -> None:
        self._loads_bytes = [0] * servers

    def __call__(self, op: tf.Operation) -> int:
        chosen = min(range(len(self._loads_bytes)), key=lambda server: self._loads_bytes[server])
        shape = tf.TensorShape(op.get_attr("shape"))
        self._loads_bytes[chosen] += (shape.num_elements() or 0) * tf.as_dtype(op.get_attr("dtype")).size
        return chosen


def _in_pieces(servers: int) -> Callable[..., Any]:
    """Returns a getter that splits large tables into one piece per server."""

    def get(getter: Callable[..., Any], name: str, shape: Any = None, **options: Any) -> Any:
        rows = tf.TensorShape(shape)
        # Slots of an optimizer are excluded, because they are split like their variable.
        if servers > 1 and options.get("trainable") is not False and rows.rank and int(rows[0]) >= LARGE_ROWS:
            options["partitioner"] = tf.fixed_size_partitioner(servers)
        return getter(name, shape=shape, **options)

    return get


def _with_filters(index: int) -> tf.ConfigProto:
    """Returns a session configuration for a worker, which ignores the other workers."""
    config = session_config()
    config.device_filters.extend(["/job:ps", f"/job:worker/task:{index}"])
    return config


if __name__ == "__main__":
    main()
