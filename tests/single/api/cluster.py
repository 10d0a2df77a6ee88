"""Workers and servers of `parallel_run` in one process: everything but launching is what a run has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.api.hooks import see_to_nan
from parallax_runner.api.join import NUMBER_LOSSES, with_hooks
from parallax_runner.api.script_segments import ScriptSegments, keep_inputs
from parallax_runner.api.session import Session
from parallax_runner.api.steps import Steps
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.config.schema import ProfileConfig
from parallax_runner.graph.script_graph import capture_script
from parallax_runner.launch.control.activity import STARTING, Activity
from parallax_runner.plan import plan as plans
from parallax_runner.plan.plan import Plan
from parallax_runner.profile.record import StepProfiler
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train.session_config import session_config
from parallax_runner.train.sessions import initialize
from parallax_runner.train.step_runner import StepRunner
from parallax_runner.worker.segments import Segments
from tests.free_port import pick_free_ports
from tests.single.plans import plan_of

WORKERS, SERVERS, DEVICES = 2, 2, 2
T = TypeVar("T")


@dataclass
class Told:
    """Stands for the connection to the driver; keeps what it is told."""

    stop_requested: threading.Event = field(default_factory=threading.Event)
    last_step: int | None = None
    step: int | None = None
    doing: Activity = STARTING
    reports: list[dict[str, Any]] = field(default_factory=list)
    orders: list[tuple[int, Plan | None]] = field(default_factory=list)

    def next_order(self) -> dict[str, Any] | None:
        """Changes the plan as the next of the orders says, or ends the training."""
        _, plan = self.orders.pop(0)
        until = self.orders[0][0] if self.orders else None
        return {"plan": None if plan is None else plans.to_json(plan), "until": until, "ends": plan is None}

    def report(self, kind: str, **fields: Any) -> None:
        """Keeps it."""
        self.reports.append({"kind": kind, **fields})

    def announce_last_step(self, step: int) -> None:
        """Ends the training after this step."""
        self.last_step = step


class Cluster:
    """TensorFlow's servers of two workers, with two CPU devices each, and of two servers."""

    def __init__(self) -> None:
        addresses = [f"127.0.0.1:{port}" for port in pick_free_ports(WORKERS + SERVERS)]
        spec = tf.train.ClusterSpec({"worker": addresses[:WORKERS], "ps": addresses[WORKERS:]})
        config = session_config(1, cpu_devices=DEVICES)
        self._servers = [
            tf.train.Server(spec, job_name=job, task_index=index, config=config)
            for job, number in (("worker", WORKERS), ("ps", SERVERS))
            for index in range(number)
        ]

    def sessions(
        self,
        graph: tf.Graph,
        *,
        comm: str = "ps",
        workers: int = 1,
        partitions: int = 2,
        hooks: Sequence[Any] = (),
        training: dict[str, Any] | None = None,
        orders: Sequence[tuple[int, int | None]] = (),
        **planned: Any,
    ) -> list[Session]:
        """The sessions of all workers for a script's graph, whose variables no other test may have.

        Each of `orders` is a step after which the plan changes, and the number of shards from then on, or
        None if the training ends there.
        """
        single = with_hooks(graph, capture_script(graph), hooks)

        def plan_with(partitions: int) -> Plan:
            return plan_of(
                classify(single),
                comm=comm,
                workers=workers,
                servers=SERVERS,
                partitions=partitions,
                fingerprint=single.fingerprint,
                **{"average_sparse": False, **planned},
            )

        plan = plan_with(partitions)

        def open_one(rank: int) -> Session:
            distributed = rewrite_for_rank(single, plan, rank=rank, seed=1)
            steps, checkpoints = Steps(single), CheckpointOps(distributed)
            segments = ScriptSegments.of(graph, steps, distributed)
            if orders:
                keep_inputs(steps.graph, distributed)
            distributed.graph.finalize()
            filters = ["/job:ps", f"/job:worker/task:{rank}"]
            # What waits for what never comes is to fail, not to hang.
            config = session_config(1, filters if plan.servers else None, cpu_devices=DEVICES)
            config.operation_timeout_in_ms = 30_000
            target = self._servers[rank].target if plan.servers else ""
            session = tf.Session(target, graph=distributed.graph, config=config)
            initialize(session, distributed, checkpoints, None)
            told = Told(orders=[(step, None if number is None else plan_with(number)) for step, number in orders])
            own: dict[str, Any] = {
                "control": told,
                "profiler": StepProfiler(ProfileConfig(name="off"), rank),
                "log_every": 1,
                "loss_rule": None if see_to_nan(hooks) else NUMBER_LOSSES,
            }
            runner = StepRunner(session, distributed, **(own | (training or {})))
            runner.begin(first_step=0)
            if orders:

                def rewritten(changed: Plan, step: int) -> DistributedGraph:
                    distributed = rewrite_for_rank(single, changed, rank=rank, seed=1, first_step=step)
                    segments.translate(distributed)
                    return distributed

                def reopen(distributed: DistributedGraph, before: tf.Session) -> tf.Session:
                    return tf.Session(before.sess_str, graph=distributed.graph, config=config)

                segments.until = orders[0][0]
                client: Any = told
                segments.next_segment = Segments(client, plan, rewritten, reopen, keeps_inputs=True).next
            return Session(graph, plan, segments, runner, hooks)

        return at_once([lambda rank=rank: open_one(rank) for rank in range(workers)])


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """What the calls return, each made in a thread of its own, as workers are."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result(60) for future in [threads.submit(call) for call in calls]]
