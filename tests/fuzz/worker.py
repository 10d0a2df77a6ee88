"""A rank that trains many random models in one launch: `python -m tests.fuzz.worker RUN_DIR`."""

from __future__ import annotations

import json
import sys
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.writer import CheckpointWriter
from parallax_runner.collectives import ops as collectives
from parallax_runner.collectives.chosen import BACKENDS, DEFAULT, choose
from parallax_runner.errors import ParallaxError
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step
from parallax_runner.launch.child import run_child
from parallax_runner.launch.control.client import ControlClient, rank_from_environ
from parallax_runner.plan.comm_options import CommOptions, Lookahead, PsOptions
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.plan_request import PlanRequest
from parallax_runner.planning.planner import make_plan
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train.cluster import join_cluster
from parallax_runner.train.lookahead_steps import StepsAhead, give_pools
from parallax_runner.train.session_config import session_config
from parallax_runner.train.sessions import device_filters, initialize
from tests.fuzz import batches
from tests.fuzz.module import imported, read_models
from tests.fuzz.notes import notes_on
from tests.fuzz.random_model import GRAPH, STEPS, RandomModel, Segment
from tests.parallel.matrix_worker import read_ops, save, values

SERVERS, SEED = 2, 7
READY, REFUSED, FAILED = "ready", "refused", "failed"


def run_models(run_dir: Path, rank: int, client: ControlClient) -> None:
    """Trains each model of the list."""
    models = read_models(run_dir)
    choose(BACKENDS[DEFAULT])
    collectives.join(may_fuse=False)
    server = join_cluster(client, role="worker", index=rank, threads=1)
    for model in models:
        with (run_dir / "progress").open("a") if rank == 0 else nullcontext() as progress:
            if progress is not None:
                progress.write(f"{model.seed}\n")
        Rank(run_dir, model, rank, server.target).run()
    client.done()


class Rank:
    """A rank of a model's training. `ranks` are all processes; some segments use only the first one."""

    def __init__(self, run_dir: Path, model: RandomModel, rank: int, target: str) -> None:
        self.run_dir, self.model, self.rank, self.target = run_dir, model, rank, target
        self.ranks = int((run_dir / "ranks").read_text())
        self.losses = np.full(STEPS, np.nan)  # of the steps that this rank takes part in

    def run(self) -> None:
        """Captures, and trains unless a rank could not capture. Leaves no variables on servers."""
        try:
            self.module = imported(self.run_dir, self.model.seed)
            graphs, outcome = self._graphs()
        except ParallaxError as error:
            outcome = {"status": REFUSED, "text": f"{type(error).__name__}: {error}"}
        except Exception:
            outcome = {"status": FAILED, "text": traceback.format_exc()}
        self._write("captured", outcome)
        if any(each["status"] != READY for each in self._meet("captured")):
            return
        try:
            for number, segment in enumerate(self.model.segments):
                if self.rank < segment.ranks:
                    self._train(number, segment, graphs[number])
                self._meet(f"trained_{number}")
        except Exception:
            self._write("failed", {"status": FAILED, "text": traceback.format_exc()})
            raise
        self._save("losses", {"losses": self.losses})
        if self.rank == 0:
            tf.Session.reset(self.target)
        self._meet("reset")

    def _graphs(self) -> tuple[list[tuple[Plan, DistributedGraph] | None], dict[str, Any]]:
        """Returns the plan and this rank's graph of each segment that the rank takes part in."""
        keras.config.set_floatx("float32")
        keras.utils.clear_session(free_memory=False)  # a model that failed may have left its scopes open
        single = captured(self.module, self.model)
        found: list[tuple[Plan, DistributedGraph] | None] = []
        for number, segment in enumerate(self.model.segments):
            plan = plan_of(segment, single)
            if self.rank >= segment.ranks:
                found.append(None)
                continue
            first_step = self.model.segment_steps(number).start
            found.append((plan, rewrite_for_rank(single, plan, rank=self.rank, seed=SEED, first_step=first_step)))
        notes = notes_on(self.module, self.model, single) if self.rank == 0 else []
        return found, {"status": READY, "text": "", "notes": notes}

    def _train(self, number: int, segment: Segment, graph: tuple[Plan, DistributedGraph] | None) -> None:
        assert graph is not None
        plan, distributed = graph
        checkpoints, reads = CheckpointOps(distributed), read_ops(distributed)
        config = session_config(1, device_filters=device_filters(distributed) if plan.servers else None)
        if distributed.ahead is not None:
            give_pools(config)
        start = str(self._prefix(number)) if number else None
        with tf.Session(self.target if plan.servers else "", graph=distributed.graph, config=config) as session:
            initialize(session, distributed, checkpoints, start)
            if number == 0:
                self._save("initial", values(session, reads))
            self._steps(session, distributed, self.model.segment_steps(number))
            if number + 1 < len(self.model.segments):
                if checkpoints.is_chief or checkpoints.is_collective:
                    arrays = checkpoints.read(session)
                if checkpoints.is_chief:
                    CheckpointWriter(checkpoints.slices).write(self._prefix(number + 1), arrays)
                return
            self._save("final", values(session, reads))

    def _steps(self, session: tf.Session, distributed: DistributedGraph, steps: range) -> None:
        ahead = None if distributed.ahead is None else StepsAhead(distributed.ahead, session)
        (features,) = distributed.features
        for step in steps:
            batch = self._batch(step)
            feed = {features[name]: array for name, array in batch.items()}
            fetches = [distributed.loss, distributed.train_op]
            if ahead is not None:
                feed |= ahead.start(batch, None if step == steps[-1] else self._batch(step + 1))
            self.losses[step], _ = session.run(fetches, feed)
            if ahead is not None:
                ahead.finish()

    def _batch(self, step: int) -> batches.Batch:
        return batches.batch(self.module.FEATURES, self.model.seed, step, self.rank)

    def _prefix(self, number: int) -> Path:
        return self.run_dir / "checkpoints" / f"{self.model.seed}_{number}"

    def _save(self, what: str, arrays: dict[str, np.ndarray]) -> None:
        save(self.run_dir / f"{self.model.seed}_{what}_{self.rank}.npz", arrays)

    def _write(self, name: str, outcome: dict[str, Any]) -> None:
        path = self.run_dir / f"{self.model.seed}_{name}_{self.rank}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(outcome))
        part.rename(path)

    def _meet(self, name: str) -> list[dict[str, Any]]:
        """Waits for all ranks, and returns what each wrote under this name."""
        own = self.run_dir / f"{self.model.seed}_{name}_{self.rank}.json"
        if not own.exists():
            self._write(name, {"status": READY})
        paths = [self.run_dir / f"{self.model.seed}_{name}_{rank}.json" for rank in range(self.ranks)]
        while not all(path.exists() for path in paths):
            time.sleep(0.005)
        return [json.loads(path.read_text()) for path in paths]


def captured(module: ModuleType, model: RandomModel) -> SingleDeviceGraph:
    """Returns the captured graph of a model."""
    shapes = {name: ((batches.BATCH, *shape), dtype) for name, (shape, dtype) in module.FEATURES.items()}
    if model.front == GRAPH:
        return capture(module.build, shapes, seed=SEED)
    return capture_step(lambda: made(module), shapes, seed=SEED, options=module.OPTIONS)


def made(module: ModuleType) -> Any:
    """Returns the Keras model or the step, without the list of variables that only the comparison needs."""
    found = module.make()
    return found[0] if isinstance(found, tuple) else found


def plan_of(segment: Segment, single: SingleDeviceGraph) -> Plan:
    """Returns the plan of a segment."""
    options = CommOptions(
        ps=PsOptions(replicate_variables=segment.replicate_variables, boundary_among_servers=segment.among_servers),
        use_allgatherv=segment.use_allgatherv,
        lookahead=Lookahead(segment.lookahead),
    )
    request = PlanRequest(
        comm=segment.comm,
        variables=tuple(classify(single)),
        fingerprint=single.fingerprint,
        workers=segment.ranks,
        servers=SERVERS if segment.comm in ("ps", "hybrid") else 0,
        options=options,
        partitions=segment.partitions,
    )
    return make_plan(request)


if __name__ == "__main__":
    run_child("worker", rank_from_environ(), Path(sys.argv[1]), run_models)
