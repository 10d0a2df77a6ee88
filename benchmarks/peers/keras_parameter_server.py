"""A peer that trains asynchronously with `ParameterServerStrategy`. The chief and each worker and server are processes.

`python -m benchmarks.peers.keras_parameter_server --job chief --index 0 --workers HOST:PORT,… --servers … --steps 100`

The loop follows TensorFlow's tutorial "Parameter server training with ParameterServerStrategy". Workers run no Python
code under this strategy, so all batches are tensors of a dataset that each worker shuffles, as in the tutorial. Each
worker applies its own gradient. The learning rate is divided by the number of workers, because a synchronous step
averages gradients.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.hosts.cluster import free_ports
from benchmarks.peers.dlrm_variables import OPTIMIZERS, Dlrm
from benchmarks.peers.keras_model import one_thread
from benchmarks.peers.task import Task, cluster_parser, leave

PROTOCOL = "grpc"
SMALLEST_SHARD_BYTES = 256 << 10  # the default of MinSizePartitioner


def main() -> None:
    """Trains as the chief, or serves until the process is ended."""
    arguments = cluster_parser(__doc__, "chief", "worker", "ps").parse_args()
    one_thread()
    cluster = {"worker": arguments.workers, "ps": arguments.servers}
    if arguments.job != "chief":
        tf.distribute.Server(
            tf.train.ClusterSpec(cluster), job_name=arguments.job, task_index=arguments.index, protocol=PROTOCOL
        ).join()
    task = Task(arguments, rank=0, size=len(arguments.workers))
    host = arguments.workers[0].partition(":")[0]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster | {"chief": [f"{host}:{free_ports(1)[0]}"]}),
        task_type="chief",
        task_id=0,
        rpc_layer=PROTOCOL,
    )
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        SMALLEST_SHARD_BYTES, max_shards=len(arguments.servers)
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    tf.random.set_seed(task.config.train.seed)
    with strategy.scope():
        model = Dlrm(task.config.model)
        settings = task.config.model
        optimizer = OPTIMIZERS[settings.optimizer](model.variables, settings.learning_rate / task.size)
    batches = all_batches(task)

    @tf.function
    def training_step(iterator: Any) -> tf.Tensor:
        def replica_step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
            with tf.GradientTape() as tape:
                logits = model.logits(batch["dense"], batch["categorical"])
                losses = tf.nn.sigmoid_cross_entropy_with_logits(batch["label"], logits)
                loss = tf.reduce_mean(losses)
            optimizer.apply(tape.gradient(loss, model.variables), model.variables)
            return loss

        return strategy.reduce(
            tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=(next(iterator),)), axis=None
        )

    @tf.function
    def worker_data() -> tf.data.Dataset:
        return strategy.distribute_datasets_from_function(
            lambda _: tf.data.Dataset.from_tensor_slices(batches).shuffle(task.steps * task.size).repeat()
        )

    iterator = iter(coordinator.create_per_worker_dataset(worker_data))
    pending = [coordinator.schedule(training_step, args=(iterator,)) for _ in range(task.steps * task.size)]

    def step(number: int) -> float:
        """Waits for the next `task.size` batches, whichever workers trained them, and returns their mean loss."""
        own = pending[number * task.size : (number + 1) * task.size]
        return statistics.fmean(float(one.fetch()) for one in own)

    task.run(step)
    leave()


def all_batches(task: Task) -> dict[str, np.ndarray]:
    """Returns the batches of all ranks and steps, stacked."""
    size = task.config.data.batch_size
    made = [task.dataset.train_batch(number * size, size) for number in range(task.steps * task.size)]
    return {name: np.stack([batch[name] for batch in made]) for name in made[0]}


if __name__ == "__main__":
    main()
