"""The work of one rank: the stages after planning."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import Sidecar, read_sidecar
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.row_writer import RowWriter
from parallax_runner.checkpoints.saver import CheckpointSaver
from parallax_runner.checkpoints.warm_start import FILE_NAME as WARM_START
from parallax_runner.checkpoints.warm_start import WarmStart
from parallax_runner.checkpoints.warm_start_ops import WarmStartOps
from parallax_runner.collectives.chosen import BACKENDS, backend, choose
from parallax_runner.config import frozen
from parallax_runner.config.actions import action_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset, numbering_of
from parallax_runner.data.evaluated import evaluated
from parallax_runner.data.identity import EXAMPLES_OF_DRIVER, Contents, difference_in, examples_of, loaded_contents
from parallax_runner.data.identity import FILE_NAME as IDENTITY
from parallax_runner.errors import DataError, PlanError
from parallax_runner.export.checkpoints import OUTBOX, hold
from parallax_runner.files.whole import write_whole
from parallax_runner.graph.build import MODEL
from parallax_runner.graph.fingerprint import FILE_NAME as OUTLINE
from parallax_runner.graph.fingerprint import Outline
from parallax_runner.graph.generators import seed_generators
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.launch import bind_address
from parallax_runner.launch.control import wire
from parallax_runner.launch.control.client import ControlClient
from parallax_runner.launch.proof import World, claim
from parallax_runner.plan import plan as plans
from parallax_runner.plan.plan import Plan
from parallax_runner.process.stage_times import stage
from parallax_runner.profile.record import StepProfiler
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.routes.registry import lengths_vary, may_fuse, uses_collectives
from parallax_runner.search.extent import may_change
from parallax_runner.shipment.received import Maker, Received
from parallax_runner.shipment.shipment_folder import folder_of
from parallax_runner.track.tracker import find_tracker
from parallax_runner.train.feed import Feed
from parallax_runner.train.learning_rate import LearningRates
from parallax_runner.train.loop import FINITE_LOSSES, Loop
from parallax_runner.train.segment import Segment
from parallax_runner.train.session_config import merged
from parallax_runner.train.sessions import gpu_limits, initialize, open_session_of, session_config_of
from parallax_runner.train.step_runner import StepRunner
from parallax_runner.worker.deltas import deltas_of, trained_names
from parallax_runner.worker.rank_run import RankRun
from parallax_runner.worker.segments import Segments

log = logging.getLogger(__name__)


def run_rank(run_dir: Path, rank: int, client: ControlClient, maker: Maker = MODEL) -> dict[str, Any]:
    """Trains according to the files in `run_dir`. Returns this rank's results for the summary.

    `maker` makes the data and the graph if the driver could not hand them over.
    """
    source = Received.of(run_dir, maker)
    config, plan = frozen.load(run_dir), plans.load(run_dir / "plan.json")
    join_ranks(plan, run_dir, client)
    dataset = evaluated(config, source.load_dataset(config))
    identity = Contents.load(run_dir / IDENTITY)
    check_data(config, dataset, identity, rank, is_received=source.contents.data is None)
    tell_other_examples(dataset, run_dir, client)
    single = source.build_graph(config, dataset)
    check_graph(single, plan, run_dir, rank)
    seed_generators(config.train.seed)  # Python functions in the graph may draw random numbers in each step
    start, action = start_of(config), action_of(config)
    with stage("rewrite"):
        distributed = rewrite(config, plan, single, rank, first_step=start.step)
        checkpoints, warm = CheckpointOps(distributed), warm_start_of(config, run_dir, distributed)
        deltas = deltas_of(config, checkpoints, distributed, plan, single) if action.trains else None
        learning_rates = LearningRates(distributed, single.learning_rates)
        export_graph(config, distributed)
        distributed.graph.finalize()
    client.wait_until_proven()
    with open_session_of(config, client, plan, distributed) as session:
        resumed = None if config.ckpt.resume == "never" else config.ckpt.resume
        initialize(session, distributed, checkpoints, resumed, warm)
        feed = Feed(dataset, config.data["batch_size"], rank, plan.workers, plan.replicas_per_worker)
        runner = StepRunner(
            session=session,
            distributed=distributed,
            control=client,
            log_every=config.train.log_every,
            loss_rule=FINITE_LOSSES,
            saver=saver_of(config, checkpoints, single, client, feed, identity.training) if action.trains else None,
            deltas=deltas,
            reports_saves=frozen.is_fit(config) and config.ckpt.enabled,
            save_steps=config.ckpt.save_steps,
            profiler=StepProfiler(config.profile, rank),
            examples_per_step=feed.global_batch,
        )
        loop = Loop(
            runner,
            feed,
            validates=action.validates,
            counts_all=action.counts_all,
            validate_steps=config.train.validate_steps,
            next_segment=segments_of(config, client, single, plan, rank, learning_rates),
            saves_segments=frozen.is_fit(config) and config.model["saves_epochs"],
            run_dir=Path(config.run_dir),
        )
        return action.work(RankRun(loop, checkpoints, single, plan, config, start))


def check_data(config: RunConfig, dataset: Dataset, driver: Contents, rank: int, *, is_received: bool = False) -> None:
    """Raises DataError if this process reads other data than the driver. `is_received` is set if the driver has handed
    over the data, which can still name files."""
    difference = difference_in(driver, loaded_contents(config, dataset))
    if difference is None:
        return
    if is_received:
        raise DataError(
            f"rank {rank} reads other {difference} than the driver. The files that the data names must be the same on "
            "each host, and must not change during a run"
        )
    why_different = getattr(dataset, "why_different", None)
    if why_different is not None:
        raise DataError(f"rank {rank} has loaded other {difference} than the driver: {why_different}")
    what = "the script" if frozen.is_fit(config) else f"data._target_={config.data['_target_']}"
    key = 'overrides=["data.resume=approximate"]' if frozen.is_fit(config) else "++data.resume=approximate"
    raise DataError(
        f"rank {rank} has loaded other {difference} than the driver. Every process runs {what} and must get the same "
        "data: seed each random generator, as in np.random.default_rng(1), and sort what has no fixed order, such as "
        f"the files in a folder. If the data must differ, set {key}, so that it is not compared"
    )


def tell_other_examples(dataset: Dataset, run_dir: Path, client: ControlClient) -> None:
    """Tells the driver if this process reads other examples than the driver, where the user accepts that. Does nothing
    unless each worker makes data of its own that may differ."""
    path = folder_of(run_dir) / EXAMPLES_OF_DRIVER
    if not path.exists():
        return
    difference = difference_in(Contents.load(path), examples_of(dataset))
    if difference is not None:
        client.report("other_examples", difference=difference)


def check_graph(single: SingleDeviceGraph, plan: Plan, run_dir: Path, rank: int) -> None:
    """Raises PlanError if the model's function has not built the same graph in this process as in the driver, which
    wrote the plan in `run_dir`."""
    difference = difference_of(single, plan, run_dir)
    if difference is not None:
        raise PlanError(
            f"rank {rank} built a graph that differs from the driver's{difference}. The script or the model's function "
            "must build the same graph in every process: it must not depend on a clock, the host, the process, the "
            "order of a set of strings, or random numbers without a seed (keras.utils.set_random_seed)"
        )


def difference_of(single: SingleDeviceGraph, plan: Plan, run_dir: Path) -> str | None:
    """Returns text that states how this process's graph differs from the graph of the process that made the plan, or
    None if the graphs are the same. The text is appended to a message, and is empty if the difference is unknown."""
    if single.fingerprint == plan.fingerprint:
        return None
    try:
        found = Outline.load(run_dir / OUTLINE).first_difference(single.meta_graph.graph_def)
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read: %s", run_dir / OUTLINE, error)
        found = None
    return "" if found is None else f": {found}"


def segments_of(
    config: RunConfig,
    client: ControlClient,
    single: SingleDeviceGraph,
    plan: Plan,
    rank: int,
    learning_rates: LearningRates | None = None,
    *,
    on_rewritten: Callable[[DistributedGraph], None] = lambda _: None,
    sess_config: tf.ConfigProto | None = None,
    keeps_inputs: bool = False,
) -> Callable[[tf.Session, int, list[float]], Segment | None] | None:
    """Returns the function that asks the driver how training continues, or None if nothing changes until the end of
    training.

    `on_rewritten` is called with each later graph of this rank before the graph is finalized. `sess_config` is a
    script's own configuration of its session. `keeps_inputs` is described in `Segments`.
    """
    if not may_change(config, plan) and not frozen.has_epochs(config):
        return None

    def rewritten(changed: Plan, step: int) -> DistributedGraph:
        distributed = rewrite(config, changed, single, rank, first_step=step)
        on_rewritten(distributed)
        export_graph(config, distributed)
        return distributed

    def reopen(distributed: DistributedGraph, before: tf.Session) -> tf.Session:
        of_session = merged(session_config_of(config, distributed), sess_config)
        return tf.Session(before.sess_str, graph=distributed.graph, config=of_session)

    return Segments(client, plan, rewritten, reopen, learning_rates, keeps_inputs=keeps_inputs).next


def rewrite(
    config: RunConfig, plan: Plan, single: SingleDeviceGraph, rank: int, *, first_step: int
) -> DistributedGraph:
    """Rewrites the captured graph for this rank, according to the configuration. The graph is not finalized, so callers
    can still add ops."""
    return rewrite_for_rank(
        single,
        plan,
        rank=rank,
        seed=config.train.seed,
        first_step=first_step,
        skip_nonfinite=config.train.on_nan == "skip",
        device_type="GPU" if gpu_limits(config, rank).visible else "CPU",
    )


def export_graph(config: RunConfig, distributed: DistributedGraph) -> None:
    """Writes this worker's graph as a MetaGraph for `tf.train.import_meta_graph`, if `export_graph_path` is set."""
    if config.export_graph_path is not None:
        folder = Path(config.export_graph_path)
        folder.mkdir(parents=True, exist_ok=True)
        with distributed.graph.as_default():  # In eager mode, TensorFlow refuses to export.
            meta_graph = tf.train.export_meta_graph()
        write_whole(folder / f"worker_{distributed.rank}.meta", meta_graph.SerializeToString())


def join_ranks(plan: Plan, run_dir: Path, client: ControlClient) -> None:
    """Joins the other ranks if the plan needs collectives, and sends this process's claim to the driver.

    No other thread may run during this call, in particular no thread that runs the user's code. When MPI starts, it
    reads and sets environment variables, which no other thread may access at the same time (docs/design/0034).
    """
    choose(BACKENDS[plan.options.backend])
    if not uses_collectives(plan):
        client.prove(claim(run_dir, None))
        return
    world = _joined(plan, client)
    client.awaited = backend().ops().awaited
    client.prove(claim(run_dir, world))


def _joined(plan: Plan, client: ControlClient) -> World:
    with stage("import the collectives"):
        exchanges = backend().ops()
    with stage("join the ranks"), ExitStack() as stack:
        if wire.WITHOUT_MPIRUN in os.environ:
            stack.enter_context(exchanges.met(client, bind_address.host_named))
        if plan.options.use_allgatherv:
            from parallax_runner.routes.allgather import allgatherv

            return World(*allgatherv.join())
        return World(*exchanges.join(lengths_vary=lengths_vary(plan), may_fuse=may_fuse(plan)))


def warm_start_of(config: RunConfig, run_dir: Path, distributed: DistributedGraph) -> WarmStartOps | None:
    """Returns the ops that take values from the checkpoint of another run, or None. A run that resumes takes none. Call
    this before the graph is finalized."""
    if config.ckpt.resume != "never" or not (run_dir / WARM_START).exists():
        return None
    return WarmStartOps(distributed, WarmStart.load(run_dir), run_dir)


def start_of(config: RunConfig) -> Sidecar:
    """Returns the starting point of a run: the sidecar of the checkpoint from which the run resumes, or a sidecar for
    step 0. If the run begins new data, `examples` is 0.

    Raises CheckpointError if the checkpoint's sidecar cannot be read.
    """
    if config.ckpt.resume != "never":
        found = read_sidecar(Path(config.ckpt.resume))
        return dataclasses.replace(found, examples=0) if config.ckpt.position == "start" else found
    return Sidecar(step=0, examples=0, seed=config.train.seed, fingerprint="", tracker_run_id=None)


def _on_checkpoint(config: RunConfig, client: ControlClient, prefix: Path) -> None:
    """Reports a checkpoint to the driver. If all checkpoints are logged as artifacts, first protects this one, which
    may otherwise be deleted when a later checkpoint is written."""
    if config.tracking.enabled and config.tracking.log_checkpoints == "all":
        try:
            hold(prefix, Path(config.run_dir) / OUTBOX)
        except OSError as error:
            log.warning("checkpoint %s will not be logged as an artifact: %s", prefix, error)
    client.report("checkpoint", prefix=str(prefix))


def _run_id(config: RunConfig) -> str | None:
    """Returns the id of the tracked run for a checkpoint's sidecar. The tracker is imported in the thread that writes
    the checkpoint."""
    return find_tracker(config.tracking.tracker).run_id_in(Path(config.run_dir))


def saver_of(
    config: RunConfig,
    checkpoints: CheckpointOps,
    single: SingleDeviceGraph,
    client: ControlClient,
    feed: Feed,
    data: Mapping[str, str],
) -> CheckpointSaver | RowWriter | None:
    """Returns the object that handles this rank's part of checkpointing, or None if this rank has no part. The chief
    publishes checkpoints. The other ranks write parts if they have rows that only they have. `data` identifies the
    training data."""
    if checkpoints.is_chief:
        numbering = numbering_of(feed.dataset)
        return make_saver(config, checkpoints, single, client, feed.global_batch, numbering, data)
    if not config.ckpt.enabled or checkpoints.own_rows is None:
        return None
    return RowWriter(checkpoints, Path(config.ckpt.folder), trained_names(single), config.ckpt.copy_bytes)


def make_saver(
    config: RunConfig,
    checkpoints: CheckpointOps,
    single: SingleDeviceGraph,
    client: ControlClient,
    global_batch: int = 0,
    numbering: str = "",
    data: Mapping[str, str] = MappingProxyType({}),
) -> CheckpointSaver | None:
    """Returns a saver that writes checkpoints according to `ckpt`, or None if checkpoints are disabled. A resumed run
    needs `global_batch`, `numbering` and `data` to interpret the position in the data."""
    if not config.ckpt.enabled:
        return None
    return CheckpointSaver(
        ops=checkpoints,
        folder=Path(config.ckpt.folder),
        save_steps=config.ckpt.save_steps,
        save_secs=config.ckpt.save_secs,
        keep=config.ckpt.keep,
        keep_bytes=config.ckpt.keep_bytes,
        copy_bytes=config.ckpt.copy_bytes,
        seed=config.train.seed,
        fingerprint=single.fingerprint,
        global_batch=global_batch,
        numbering=numbering,
        data=dict(data),
        ask_epoch=client.ask_epoch if frozen.keeps_epochs(config) else lambda _: lambda: None,
        check_finite=trained_names(single),
        on_written=functools.partial(_on_checkpoint, config, client),
        run_id=functools.partial(_run_id, config),
    )
