"""Opens a worker's session and sets variables to their initial or restored values."""

from __future__ import annotations

from pathlib import Path

import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.warm_start_ops import WarmStartOps
from parallax_runner.config.cluster_size import devices_of_worker, visible_gpus
from parallax_runner.config.schema import RunConfig
from parallax_runner.graph.devices import named_workers
from parallax_runner.launch.control.client import ControlClient
from parallax_runner.plan.plan import Plan
from parallax_runner.process.stage_times import stage
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.train.cluster import join_cluster
from parallax_runner.train.gpu_limits import GpuLimits
from parallax_runner.train.lookahead_steps import give_pools
from parallax_runner.train.session_config import merged, session_config


def open_session_of(
    config: RunConfig,
    client: ControlClient,
    plan: Plan,
    distributed: DistributedGraph,
    sess_config: tf.ConfigProto | None = None,
) -> tf.Session:
    """Calls `open_session` with values from the configuration. Reports if TensorFlow cannot use the worker's GPUs."""
    gpus = gpu_limits(config, distributed.rank)
    if gpus.visible and not tf.config.list_physical_devices("GPU"):
        client.report("unused_gpus", is_built_for_gpus=tf.test.is_built_with_cuda())
    return open_session(
        client,
        plan,
        distributed,
        config.cluster.threads_per_worker,
        protocol=config.comm.ps.protocol,
        gpus=gpus,
        cpu_devices=devices_of_worker(config.cluster)["CPU"],
        soft_placement=config.cluster.soft_placement,
        sess_config=sess_config,
    )


@stage("open a session")
def open_session(
    client: ControlClient,
    plan: Plan,
    distributed: DistributedGraph,
    threads: int,
    *,
    protocol: str = "grpc",
    gpus: GpuLimits | None = None,
    cpu_devices: int = 1,
    soft_placement: bool = False,
    sess_config: tf.ConfigProto | None = None,
) -> tf.Session:
    """Opens a session in the cluster if the plan has servers, otherwise in this process alone.

    `sess_config` is a script's own configuration, which overrides this function's settings.
    """
    if not plan.servers:
        config = session_config(threads, None, gpus, cpu_devices, soft_placement=soft_placement)
        if distributed.ahead is not None:
            give_pools(config)
        return tf.Session(graph=distributed.graph, config=merged(config, sess_config))
    server = join_cluster(
        client,
        role="worker",
        index=distributed.rank,
        threads=threads,
        protocol=protocol,
        gpus=gpus,
        cpu_devices=cpu_devices,
        sess_config=sess_config,
    )
    filters = device_filters(distributed)
    config = session_config(threads, filters, gpus, cpu_devices, soft_placement=soft_placement)
    return tf.Session(server.target, graph=distributed.graph, config=merged(config, sess_config))


def device_filters(distributed: DistributedGraph) -> list[str]:
    """Returns device filters that admit only the servers, this worker, and the workers that the model's device scopes
    name.

    A step then does not require any other worker to be alive.
    """
    workers = {distributed.rank, *named_workers(distributed.graph.as_graph_def())}
    return ["/job:ps", *(f"/job:worker/task:{worker}" for worker in sorted(workers))]


def session_config_of(config: RunConfig, distributed: DistributedGraph) -> tf.ConfigProto:
    """Returns the configuration of this rank's session in the cluster."""
    gpus = gpu_limits(config, distributed.rank)
    return session_config(
        config.cluster.threads_per_worker,
        device_filters(distributed),
        gpus,
        devices_of_worker(config.cluster)["CPU"],
        soft_placement=config.cluster.soft_placement,
    )


def gpu_limits(config: RunConfig, rank: int) -> GpuLimits:
    """Returns the limits on this rank's use of this machine's GPUs."""
    cluster = config.cluster
    return GpuLimits(
        visible=visible_gpus(cluster, rank=rank),
        memory_fraction=cluster.gpu_memory_fraction,
        allow_growth=cluster.allow_growth,
    )


@stage("initialize")
def initialize(
    session: tf.Session,
    distributed: DistributedGraph,
    checkpoints: CheckpointOps,
    start: str | None,
    warm: WarmStartOps | None = None,
) -> None:
    """Sets every variable on all ranks to its initial value, to its value in the checkpoint `start` from which the run
    resumes, or to the value that the run takes from another checkpoint (`warm`)."""
    session.run(distributed.initialize)
    session.run(distributed.open_late_inputs)
    if start is not None:
        checkpoints.restore(session, Path(start))
    if warm is not None:
        warm.run(session)
    session.run(distributed.release if distributed.rank == 0 else distributed.wait)
    session.run(distributed.agree)
