"""One row trial. The driver runs `python -m parallax_runner.worker.row_trial RUN_DIR`."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import logging
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallax_runner.config import frozen
from parallax_runner.config.schema import RunConfig
from parallax_runner.launch.child import run_child
from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.launch.control.client import ControlClient
from parallax_runner.plan import plan
from parallax_runner.planning.cost import measured
from parallax_runner.process.stage_times import log_to_stderr, process_age_secs, stage, tell
from parallax_runner.process.tensorflow_import import import_tensorflow, load_cusolver
from parallax_runner.shipment.shipment_folder import needs_script

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

    from parallax_runner.rewrite.distributed_graph import DistributedGraph
    from parallax_runner.shipment.received import Maker
    from parallax_runner.train.feed import Feed

log = logging.getLogger(__name__)

LEAST_STEPS = 5
TIMED_STEPS = 10
WARM_UP_STEPS = 3


def work(run_dir: Path, rank: int, client: ControlClient) -> None:
    """Measures the model of the run. If the run needs its script, runs that script instead, whose call to fit measures
    it."""
    log_to_stderr()
    tell("start of Python", process_age_secs())
    load_cusolver()
    if needs_script(run_dir):
        from parallax_runner.worker.script import run_script

        run_script(run_dir, rank, client, measure)
        return
    import_tensorflow()
    from parallax_runner.graph.build import MODEL

    client.done(**measure(run_dir, rank, client, MODEL))


def measure(run_dir: Path, rank: int, client: ControlClient, maker: Maker) -> dict[str, Any]:
    """Writes `measured.json` into `run_dir`. The plan in `run_dir` is for a single process, but `cluster.workers` in
    the configuration there is the number of ranks of the real run. Returns an empty dictionary, because a trial adds
    nothing to the summary."""
    with stage("import the stages"):
        from parallax_runner.analysis.classify import classify
        from parallax_runner.graph.devices import without_tasks
        from parallax_runner.graph.uneven_steps import with_batch_size
        from parallax_runner.rewrite.passes import rewrite_for_rank
        from parallax_runner.shipment.received import Received
        from parallax_runner.train.feed import Feed
        from parallax_runner.worker.rank import check_graph
        from parallax_runner.worker.row_trial.count import count_rows
        from parallax_runner.worker.row_trial.touched import ids_by_variable

    config, alone = frozen.load(run_dir), plan.load(run_dir / plan.FILE_NAME)
    source = Received.of(run_dir, maker)
    dataset = source.load_dataset(config)
    single = source.build_graph(config, dataset)
    check_graph(single, alone, run_dir, rank)
    largest = with_batch_size(single, config.data["batch_size"]) if single.is_uneven else single
    variables, single = classify(largest), without_tasks(single)
    rows = {variable.name: variable.shape[0] for variable in variables if variable.shape}
    ranks = min(config.cluster.workers, measured.MOST_RANKS)
    steps = max(LEAST_STEPS, -(-measured.MOST_STEPS // ranks))
    parts = config.cluster.workers * config.cluster.replicas_per_worker
    feeds = [Feed(dataset, config.data["batch_size"], rank, parts) for rank in range(ranks)]
    open_session = functools.partial(_open_session, config, client, alone)
    client.doing = Activity(Kind.READING_IDS)
    with stage("read ids"):
        ids = ids_by_variable(
            single,
            alone,
            feeds,
            steps=steps,
            seed=config.train.seed,
            open_session=open_session,
        )
    client.doing = Activity(Kind.TIMING_STEPS)
    with stage("time steps"):
        distributed = rewrite_for_rank(single, alone, rank=0, seed=config.train.seed)
        with open_session(distributed) as session:
            step_secs = _step_secs(session, distributed, feeds[0])
    found = measured.Measured(
        fingerprint=single.fingerprint,
        ranks=ranks,
        steps=steps,
        step_secs=step_secs,
        batch_size=config.data["batch_size"],
        words_per_example=dataset.words_per_example,
        variables=variables,
        rows=tuple(count_rows(name, rows[name], batches) for name, batches in ids.items()),
        made=datetime.date.today().isoformat(),
    )
    measured.save(found, run_dir / measured.FILE_NAME)
    return {}


def _open_session(
    config: RunConfig, client: ControlClient, alone: plan.Plan, distributed: DistributedGraph
) -> tf.Session:
    """Opens a session on the devices that rank 0 would use."""
    from parallax_runner.train.sessions import open_session_of

    session = open_session_of(config, client, alone, dataclasses.replace(distributed, rank=0))
    session.run(distributed.initialize)
    session.run(distributed.open_late_inputs)
    session.run(distributed.agree)
    return session


def _step_secs(session: tf.Session, distributed: DistributedGraph, feed: Feed) -> float:
    """Returns the median time of a training step after warm-up, in seconds."""
    (features,) = distributed.features
    secs = []
    for step in range(WARM_UP_STEPS + TIMED_STEPS):
        (batch,) = feed.train_batches(step * feed.global_batch)
        feeds = {features[name]: array for name, array in batch.items()}
        begin = time.perf_counter()
        session.run([distributed.train_op, distributed.loss], feeds)
        secs.append(time.perf_counter() - begin)
    return statistics.median(secs[WARM_UP_STEPS:])


if __name__ == "__main__":
    run_child("worker", 0, Path(sys.argv[1]), work)
