"""The part of `parallel_run` that runs in a worker: the stages after planning, up to a session whose variables have
initial or restored values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import tensorflow.compat.v1 as tf

from parallax_runner.api.config import Config
from parallax_runner.api.hooks import see_to_nan
from parallax_runner.api.script_segments import ScriptSegments, keep_inputs
from parallax_runner.api.session import Session
from parallax_runner.api.steps import Steps
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.errors import PlanError
from parallax_runner.graph.script_graph import capture_script
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan import plan as plans
from parallax_runner.plan.plan import Plan
from parallax_runner.process.stage_times import stage
from parallax_runner.profile.record import StepProfiler
from parallax_runner.search.extent import may_change
from parallax_runner.train import sessions
from parallax_runner.train.step_runner import LossRule, StepRunner
from parallax_runner.worker import rank as stages_of_rank
from parallax_runner.worker.script import Worker

# Only NaN ends the run: an infinite loss can result from a script's own loss scaling, which skips steps that overflow.
NUMBER_LOSSES = LossRule(ends_run=math.isnan, remedy="; check the data, or lower the learning rate")


def join(worker: Worker, graph: tf.Graph, api_config: Config) -> Session:
    """Opens and returns the session of a worker."""
    run_dir, rank, client, config = worker.run_dir, worker.rank, worker.client, worker.config
    plan = plans.load(run_dir / "plan.json")
    hooks = [*api_config.hooks, *(api_config.chief_only_hooks if rank == 0 else ())]
    stages_of_rank.join_ranks(plan, run_dir, client)
    with stage("graph"):
        single = capture_script(graph)
        check_same(single, plan, Path(config.model["first_process"]), rank)
        if worker.generators is not None:
            worker.generators.give_back()
        single = with_hooks(graph, single, hooks)
    start = stages_of_rank.start_of(config)
    with stage("rewrite"):
        distributed = stages_of_rank.rewrite(config, plan, single, rank, first_step=start.step)
        checkpoints = CheckpointOps(distributed)
        steps = Steps(single)
        segments = ScriptSegments.of(graph, steps, distributed)
        if may_change(config, plan):
            keep_inputs(steps.graph, distributed)
        stages_of_rank.export_graph(config, distributed)
        distributed.graph.finalize()
    client.wait_until_proven()
    tf_session = sessions.open_session_of(config, client, plan, distributed, api_config.sess_config)
    resume = None if config.ckpt.resume == "never" else config.ckpt.resume
    sessions.initialize(tf_session, distributed, checkpoints, resume)
    runner = StepRunner(
        session=tf_session,
        distributed=distributed,
        control=client,
        log_every=config.train.log_every,
        loss_rule=None if see_to_nan(hooks) else NUMBER_LOSSES,
        knows_loss=single.unknown_loss is None,
        saver=stages_of_rank.make_saver(config, checkpoints, single, client) if rank == 0 else None,
        profiler=StepProfiler(config.profile, rank),
        last_step=config.train.steps,
    )
    runner.begin(first_step=start.step)
    segments.until = start.step
    segments.next_segment = stages_of_rank.segments_of(
        config,
        client,
        single,
        plan,
        rank,
        on_rewritten=segments.translate,
        sess_config=api_config.sess_config,
        keeps_inputs=True,
    )
    return Session(graph, plan, segments, runner, hooks)


def check_same(single: SingleDeviceGraph, plan: Plan, folder: Path, rank: int) -> None:
    """Raises PlanError if a worker's graph differs from the graph of the process that wrote `folder`."""
    difference = stages_of_rank.difference_of(single, plan, folder)
    if difference is not None:
        raise PlanError(
            f"worker {rank} built a different graph than the process that started first{difference}. A script must "
            "build the same graph each time. The graph must not depend on the clock, the worker's rank, the "
            "process ID, the order of a set of strings, or random draws before `import parallax_runner`"
        )


def with_hooks(
    graph: tf.Graph, single: SingleDeviceGraph, hooks: Sequence[tf.train.SessionRunHook]
) -> SingleDeviceGraph:
    """Returns the captured graph with the ops that hooks add. The fingerprint excludes these ops, because the driver
    calls no hooks and its graph lacks them."""
    if not hooks:
        return single
    with graph.as_default():
        for hook in hooks:
            hook.begin()
    return dataclasses.replace(capture_script(graph), fingerprint=single.fingerprint)
