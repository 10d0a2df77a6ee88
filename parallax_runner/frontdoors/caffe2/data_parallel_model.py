"""Caffe2's `data_parallel_model` for TensorFlow graphs: `from parallax_runner import data_parallel_model`.

The functions and their parameters have the same names as in Caffe2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.api.config import Config
from parallax_runner.api.parallel_run import parallel_run
from parallax_runner.api.scripts_without_driver import take_part
from parallax_runner.errors import ConfigError
from parallax_runner.frontdoors.caffe2.shards import file_store, redis_store, task_of
from parallax_runner.frontdoors.door import Task


def FileStoreHandlerCreate(*, path: str, prefix: str = "") -> str:
    """Returns a `kv_handler` for processes that meet in a folder shared by all hosts. Each run needs its own prefix."""
    return file_store(path, prefix)


def RedisStoreHandlerCreate(*, host: str, port: int = 6379, prefix: str) -> str:
    """Returns a `kv_handler` for processes that meet at a Redis server, whose password is in
    PARALLAX_REDIS_PASSWORD."""
    return redis_store(host, port, prefix)


def Parallelize(
    model: Any,
    input_builder_fun: Callable[[Any], Any],
    forward_pass_builder_fun: Callable[[Any, float], Sequence[tf.Tensor]],
    optimizer_builder_fun: Callable[[Any], tf.train.Optimizer],
    devices: Sequence[int] | None = None,
    rendezvous: Mapping[str, Any] | None = None,
    optimize_gradient_memory: bool = False,
    cpu_device: bool = False,
    *,
    parallax_config: Config | None = None,
) -> None:
    """Builds a graph with the three given functions and trains the graph on all devices.

    `model` is any object that accepts attributes. `input_builder_fun(model)` creates the inputs.
    `forward_pass_builder_fun(model, loss_scale)` returns scalar losses, and the optimizer from
    `optimizer_builder_fun(model)` minimizes their sum. Gradients are averaged over shards, so `loss_scale` is 1. Ops in
    the collection UPDATE_OPS run in each step.

    Each process in `rendezvous` runs the same script. Shard 0 drives the run and exits here with the run's exit status.
    The other processes exit here when the run ends. Each worker runs the script again, and this function then sets
    `session`, `loss`, `train_op`, `num_shards` and `shard_id` on the worker's `model`. Without `rendezvous`, the script
    starts a worker for each of `devices`. `optimize_gradient_memory` has no effect, because TensorFlow manages memory
    itself.

    An invalid `rendezvous` ends the script with exit status 2. Raises ConfigError if a function returns an object of
    the wrong type.
    """

    def read() -> Task | None:
        return None if rendezvous is None else task_of(rendezvous, devices, on_cpu=cpu_device)

    take_part(read)
    graph = tf.Graph()
    with graph.as_default():
        input_builder_fun(model)
        model.loss = _sum(forward_pass_builder_fun(model, 1.0))
        model.train_op = _train_op(optimizer_builder_fun(model), model.loss)
    config = Config() if parallax_config is None else parallax_config
    config = dataclasses.replace(config, run_option=config.run_option or "MPI", average_sparse=True)
    several = rendezvous is not None and rendezvous["num_shards"] > 1
    ids = ",".join(map(str, devices or [0]))
    resources = None if several else [f"localhost: {ids}"]
    model.session, model.num_shards, model.shard_id, _ = parallel_run(graph, resources, True, config)


def RunNet(model: Any, num_iterations: int = 1) -> float | None:
    """Runs up to `num_iterations` steps and returns this worker's loss in the last step, or None if no steps were
    left."""
    loss = None
    for _ in range(num_iterations):
        if model.session.should_stop():
            break
        loss = model.session.run([model.loss, model.train_op])[0]
    return None if loss is None else float(sum(loss) / len(loss))


def _sum(losses: Any) -> tf.Tensor:
    losses = list(losses) if isinstance(losses, list | tuple) else [losses]
    if not losses or not all(isinstance(loss, tf.Tensor) for loss in losses):
        raise ConfigError(f"forward_pass_builder_fun (Parallelize) returned {losses}; expected a list of tensors")
    return tf.add_n(losses, name="loss_of_all")


def _train_op(optimizer: Any, loss: tf.Tensor) -> tf.Operation:
    if not isinstance(optimizer, tf.train.Optimizer):
        raise ConfigError(
            f"optimizer_builder_fun (Parallelize) returned {optimizer!r}; expected a tf.train.Optimizer, which "
            "Parallelize applies"
        )
    update = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    return tf.group(update, *tf.get_collection(tf.GraphKeys.UPDATE_OPS))
