"""What a worker does: the stages after planning, for one rank."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf
from omegaconf import DictConfig
from rich.console import Console

from parallax_runner.config import frozen
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.launch.client import ControlClient
from parallax_runner.launch.command import RUN_ID
from parallax_runner.pipeline import build_graph, load_dataset
from parallax_runner.plan import plan as plans
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train.checkpoint import CheckpointOps, CheckpointSaver
from parallax_runner.train.checkpoint_files import Sidecar, read_sidecar
from parallax_runner.train.cluster import join_cluster, session_config
from parallax_runner.train.feed import Feed
from parallax_runner.train.loop import Loop
from parallax_runner.verify.compare import comparison_table
from parallax_runner.verify.prove import prove


def run_rank(run_dir: Path, rank: int, client: ControlClient) -> dict[str, Any]:
    """Trains as `run_dir` says and returns what the summary needs to know of it."""
    config, plan = frozen.load(run_dir), plans.load(run_dir / "plan.json")
    if plan.uses_collectives:
        from parallax_runner.rewrite import collectives

        collectives.init()
    dataset = load_dataset(config)
    single = build_graph(config, dataset)
    start = _start_of(config)
    distributed = rewrite_for_rank(single, plan, rank=rank, seed=config.train.seed, first_step=start.step)
    checkpoints = CheckpointOps(distributed)
    distributed.graph.finalize()
    with open_session(client, plan, distributed, config.cluster.threads_per_worker) as session:
        initialize(session, distributed, checkpoints, None if config.ckpt.resume == "never" else config.ckpt.resume)
        loop = Loop(
            session=session,
            distributed=distributed,
            feed=Feed(dataset, config.data.batch_size, rank, plan.workers),
            control=client,
            log_every=config.train.log_every,
            saver=_saver(config, checkpoints, single.fingerprint) if rank == 0 else None,
        )
        if config.action == "verify":
            return _verify(loop, checkpoints, single, plan, config, start)
        outcome = loop.run(first_step=start.step, steps=config.train.steps, first_example=start.examples)
        # Who asked for a stop does not want to wait for more.
        loss_sum, batches = (0.0, 0) if client.stop_requested.is_set() else loop.validate()
    return outcome | {"first_step": start.step, "validation_loss_sum": loss_sum, "validation_batches": batches}


def _verify(
    loop: Loop, checkpoints: CheckpointOps, single: SingleDeviceGraph, plan: Plan, config: DictConfig, start: Sidecar
) -> dict[str, Any]:
    """Trains between two snapshots of all variables; then the chief does the same with the reference, and compares."""
    loop.saver = None
    is_chief = loop.distributed.rank == 0
    initial = checkpoints.snapshot(loop.session, Path(config.run_dir) / "initial" / "variables") if is_chief else {}
    outcome = loop.run(first_step=start.step, steps=config.train.steps, first_example=start.examples)
    if not is_chief:
        return outcome
    final = checkpoints.snapshot(loop.session, Path(config.run_dir) / "final" / "variables")
    feeds = [dataclasses.replace(loop.feed, rank=rank) for rank in range(plan.workers)]
    positions = [start.examples + number * loop.feed.global_batch for number in range(config.train.steps - start.step)]
    comparison = prove(
        single,
        plan,
        seed=config.train.seed,
        first_step=start.step,
        batches=[[feed.train_batch(position) for feed in feeds] for position in positions],
        initial=initial,
        final=final,
    )
    # Every variable, for this process's log.
    Console(width=140).print(comparison_table(comparison))
    return outcome | {"first_step": start.step, "comparison": comparison.as_json()}


def _start_of(config: DictConfig) -> Sidecar:
    if config.ckpt.resume != "never":
        return read_sidecar(Path(config.ckpt.resume))
    return Sidecar(step=0, examples=0, seed=config.train.seed, fingerprint="", mlflow_run_id=None)


def open_session(client: ControlClient, plan: Plan, distributed: DistributedGraph, threads: int) -> tf.Session:
    """A session on this process alone, or, where the plan has servers, on its place in the cluster."""
    if not plan.servers:
        return tf.Session(graph=distributed.graph, config=session_config(threads))
    server = join_cluster(client, role="worker", index=distributed.rank, threads=threads)
    filters = ["/job:ps", distributed.device]
    return tf.Session(server.target, graph=distributed.graph, config=session_config(threads, filters))


def initialize(
    session: tf.Session, distributed: DistributedGraph, checkpoints: CheckpointOps, start: str | None
) -> None:
    """Gives every variable its initial value, or the checkpoint's, on all ranks alike."""
    session.run(distributed.initialize)
    if start is not None:
        session.run(checkpoints.restore, {checkpoints.prefix: start})
    session.run(distributed.release if distributed.rank == 0 else distributed.wait)
    session.run(distributed.agree)


def _saver(config: DictConfig, checkpoints: CheckpointOps, fingerprint: str) -> CheckpointSaver | None:
    if not config.ckpt.enabled:
        return None
    return CheckpointSaver(
        ops=checkpoints,
        folder=Path(config.ckpt.dir),
        save_steps=config.ckpt.save_steps,
        save_secs=config.ckpt.save_secs,
        keep=config.ckpt.keep,
        seed=config.train.seed,
        fingerprint=fingerprint,
        mlflow_run_id=os.environ.get(RUN_ID),
    )
