"""Continues a rank's training after a segment. The driver's command contains the next plan and the step up to which the
plan is used.

The rank's process, its TensorFlow server and its variables are kept. The rank's captured graph is rewritten for the new
plan and runs in a new session on the same server. The chief moves the rows that have a different location in the new
plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.launch.control.client import ControlClient
from parallax_runner.plan import plan as plans
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.routes.ps.reshard import reshard
from parallax_runner.train.learning_rate import LearningRates
from parallax_runner.train.segment import Graph, Segment


@dataclass
class Segments:
    """The segments of one rank. `rewrite` builds the rank's graph for a plan and a number of finished steps.
    `open_session` opens a session for that graph on the server of an earlier session. `plan` is the current plan. If
    `learning_rates` is not None, a command can change learning rates. If `keeps_inputs` is true, the iterators and
    lookup tables of the graph outlive a session."""

    client: ControlClient
    plan: Plan
    rewrite: Callable[[Plan, int], DistributedGraph]
    open_session: Callable[[DistributedGraph, tf.Session], tf.Session]
    learning_rates: LearningRates | None = None
    keeps_inputs: bool = False

    def next(self, session: tf.Session, step: int, step_secs: Sequence[float]) -> Segment | None:
        """Reports the step times of the segment. Then executes the driver's command, which arrives when all ranks have
        reported. Returns None if training ends after `step`."""
        self.client.report("segment", step=step, step_secs=list(step_secs))
        self.client.doing = Activity(Kind.COMMAND, step)
        order = self.client.next_order()
        if order is None or order["ends"]:
            return None
        if self.learning_rates is not None:
            self.learning_rates.set(session, order.get("learning_rates", {}))
        if order["plan"] is None:
            return Segment(order["until"], is_last=order.get("is_last", False))
        self.client.doing = Activity(Kind.RESHARDING, step)
        return Segment(order["until"], self._change(session, plans.of_json(order["plan"]), step))

    def _change(self, session: tf.Session, plan: Plan, step: int) -> Graph:
        started = time.perf_counter()
        session.close()
        distributed = self.rewrite(plan, step)
        checkpoints = CheckpointOps(distributed)
        resharding = reshard(distributed.graph, self.plan, plan)
        distributed.graph.finalize()
        fresh = self.open_session(distributed, session)
        take_over(fresh, distributed, resharding, keeps_inputs=self.keeps_inputs)
        self.plan = plan
        if distributed.rank == 0:
            self.client.report("recut", secs=time.perf_counter() - started)
        return Graph(fresh, distributed, checkpoints)


def take_over(
    session: tf.Session, distributed: DistributedGraph, resharding: tf.Operation, *, keeps_inputs: bool = False
) -> None:
    """Adapts the existing variables to the session's graph. All ranks must call this function at the same time."""
    if not keeps_inputs:
        session.run(distributed.open_inputs)
        session.run(distributed.open_late_inputs)
    if distributed.rank == 0:
        session.run(resharding)
    session.run(distributed.release if distributed.rank == 0 else distributed.wait)
