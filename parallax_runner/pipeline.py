"""All stages on one screen: what the driver does with a configuration.

config → data → captured graph → analysis → plan → launch (rank.py runs in each worker) → record
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from parallax_runner import report
from parallax_runner.config import frozen
from parallax_runner.data.dataset import Dataset
from parallax_runner.errors import ParallaxError
from parallax_runner.launch import command, processes
from parallax_runner.launch.attempt import LaunchSpec
from parallax_runner.plan import plan as plans
from parallax_runner.plan.plan import Plan
from parallax_runner.plan.planner import make_plan
from parallax_runner.track.progress import ProgressDisplay
from parallax_runner.track.run_record import RunRecord, validation_result, write_summary
from parallax_runner.track.tracker import NoTracker, Tracker

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph

log = logging.getLogger(__name__)


def drive(config: DictConfig) -> float | None:
    """Runs one job to its end and returns its objective: the validation metric, or else the last loss.

    Raises ParallaxError where the configuration, data, graph or plan is at fault, and SystemExit with the run's status
    where a run failed or was stopped.
    """
    # TensorFlow's notes on its build are of no use here; its errors still come through.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    run_dir = Path(config.run_dir).resolve()
    _log_to(run_dir)
    summary = report.empty_summary(config)
    try:
        dataset = load_dataset(config)
        single = build_graph(config, dataset)
        plan = plan_run(config, single)
        summary |= {"comm": plan.comm, "workers": plan.workers, "servers": plan.servers}
        plans.save(plan, run_dir / "plan.json")
        report.show_plan(plan)
        if config.action == "plan":
            write_summary(run_dir, summary | {"status": "finished"})
            return None
        config = _with_start(config, single, run_dir)
        frozen.freeze(config, run_dir)
        return _run(config, plan, single, dataset, run_dir, summary)
    except Exception as error:
        log.error("%s", error, exc_info=True)
        told = str(error) if isinstance(error, ParallaxError) else f"{type(error).__name__}: {error}"
        write_summary(run_dir, summary | {"status": "failed", "error": told})
        raise


def load_dataset(config: DictConfig) -> Dataset:
    """The data that `config.data` describes."""
    from hydra.utils import instantiate

    arguments = {key: value for key, value in config.data.items() if key != "batch_size"}
    return _unwrapped(lambda: instantiate(arguments))


def build_graph(config: DictConfig, dataset: Dataset) -> SingleDeviceGraph:
    """The graph that the model's function builds for one replica; the same in every process."""
    from hydra.utils import instantiate

    with _native_output_to(Path(config.run_dir) / "logs" / "driver.log"), _keras_later():
        from parallax_runner.graph.capture import capture

    def build(features: dict[str, Any]) -> Any:
        optimizer = _unwrapped(lambda: instantiate(config.optimizer))
        return _unwrapped(lambda: instantiate(config.model, features, optimizer))

    shapes = {
        name: ((config.data.batch_size, *feature.shape), feature.dtype) for name, feature in dataset.features.items()
    }
    return capture(build, shapes, seed=config.train.seed)


@contextmanager
def _native_output_to(path: Path) -> Iterator[None]:
    """Keeps what TensorFlow's C++ says of its build while it is imported from the user's terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)


@contextmanager
def _keras_later() -> Iterator[None]:
    """Leaves Keras, half of TensorFlow's import time, to the first use of `tf.keras`: its loader asks only then which
    Keras is wanted. (A worker gains nothing: Horovod imports Keras.)"""
    if "TF_USE_LEGACY_KERAS" in os.environ:
        yield
        return
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    try:
        yield
    finally:
        del os.environ["TF_USE_LEGACY_KERAS"]


def _unwrapped(call: Callable[[], Any]) -> Any:
    """What `call` returns or raises, without the exception that Hydra wraps around an error of the called function."""
    from hydra.errors import InstantiationException

    try:
        return call()
    except InstantiationException as error:
        if error.__cause__ is not None:
            raise error.__cause__ from None
        raise


def plan_run(config: DictConfig, single: SingleDeviceGraph) -> Plan:
    """The plan for this graph and cluster."""
    from parallax_runner.analysis.classify import classify

    return make_plan(
        classify(single),
        comm=config.comm.name,
        workers=1 if config.comm.name == "local" else config.cluster.workers,
        servers=config.cluster.servers,
        partitions=config.partition.num,
        average_sparse=config.comm.average_sparse,
        fingerprint=single.fingerprint,
    )


def _with_start(config: DictConfig, single: SingleDeviceGraph, run_dir: Path) -> DictConfig:
    """The configuration with `ckpt.resume` settled: a checkpoint's prefix, or `never`."""
    from parallax_runner.train import checkpoint_files

    settled = DictConfig(OmegaConf.to_container(config, resolve=True))
    settled.run_dir = str(run_dir)
    start = None
    if config.ckpt.enabled:
        settled.ckpt.dir = str(Path(config.ckpt.dir).resolve())
        start = checkpoint_files.find_start(config.ckpt.resume, Path(settled.ckpt.dir))
    if start is not None:
        from parallax_runner.train.checkpoint import check_fits

        check_fits(start, single.variables)
        log.info("resuming from %s", start)
    settled.ckpt.resume = "never" if start is None else str(start.resolve())
    return settled


def launch_spec(config: DictConfig, plan: Plan, run_dir: Path, run_id: str | None) -> LaunchSpec:
    """What to start for a plan; `run_id` is the MLflow run's."""
    threads = config.cluster.threads_per_worker
    more_env = {} if run_id is None else {command.RUN_ID: run_id}
    if plan.comm == "local":
        worker = command.direct_worker_command(run_dir=run_dir, threads_per_worker=threads, more_env=more_env)
    else:
        options = config.comm.mpi.mpirun_options or ()
        worker = command.worker_command(
            run_dir=run_dir,
            workers=plan.workers,
            threads_per_worker=threads,
            more_env=more_env,
            mpirun_options=shlex.split(options) if isinstance(options, str) else list(options),
        )
    servers = tuple(
        command.server_command(run_dir=run_dir, index=index, threads_per_server=threads)
        for index in range(plan.servers)
    )
    return LaunchSpec(
        run_dir=run_dir,
        workers=plan.workers,
        worker=worker,
        server=servers,
        under_mpirun=plan.comm != "local",
    )


def _run(
    config: DictConfig, plan: Plan, single: SingleDeviceGraph, dataset: Dataset, run_dir: Path, summary: dict[str, Any]
) -> float | None:
    tracker = open_tracker(config, plan)
    summary["mlflow_run_id"] = tracker.run_id
    try:
        record, result = _launch(config, plan, dataset, run_dir, tracker)
    except BaseException:
        tracker.end("failed")
        raise
    done = {rank: fields for (role, rank), fields in result.done.items() if role == "worker"}
    validation = validation_result(done, single.validation_metric)
    tracker.log_metrics(record.last_step, validation)
    summary |= report.summarize(record, done) | {"status": result.status}
    summary |= {key.replace("/", "_"): value for key, value in validation.items()}
    if result.failure is not None:
        summary["error"] = str(result.failure)
    if "comparison" in done.get(0, {}):
        summary |= report.verification(done[0]["comparison"])
    _close(tracker, run_dir, write_summary(run_dir, summary), summary["status"])
    report.tell_end(summary, result.failure, run_dir)
    if summary["status"] != "finished":
        raise SystemExit(result.exit_status or 1)
    return summary[report.objective_of(summary)] if config.action == "train" else None


def _launch(
    config: DictConfig, plan: Plan, dataset: Dataset, run_dir: Path, tracker: Tracker
) -> tuple[RunRecord, processes.RunResult]:
    log_every = config.train.log_every
    with ProgressDisplay(steps=config.train.steps, log_every=log_every) as display:
        record = RunRecord(
            workers=plan.workers,
            steps=config.train.steps,
            log_every=log_every,
            global_batch=config.data.batch_size * plan.workers,
            words_per_example=dataset.words_per_example,
            tracker=tracker,
            display=display,
        )

        def on_message(message: processes.Message) -> None:
            if message.kind == "progress":
                record.on_progress(message.index, **message.fields)

        return record, processes.run(launch_spec(config, plan, run_dir, tracker.run_id), on_message=on_message)


def open_tracker(config: DictConfig, plan: Plan) -> Tracker:
    """The MLflow run of this job, with its parameters; or nothing where tracking is off."""
    if not config.tracking.enabled:
        return NoTracker()
    from parallax_runner.track.mlflow_tracker import MlflowTracker

    tags = {"comm": plan.comm, "model": config.model["_target_"], "workers": plan.workers, **config.tracking.tags}
    tracker = MlflowTracker(config.tracking.uri, config.tracking.experiment, config.tracking.run_name, tags)
    tracker.log_params(dict(DictConfig(OmegaConf.to_container(config, resolve=True))))
    return tracker


def _close(tracker: Tracker, run_dir: Path, summary_path: Path, status: Any) -> None:
    for path in (run_dir / frozen.FILE_NAME, run_dir / "plan.json", summary_path, run_dir / "logs"):
        tracker.log_artifact(path)
    tracker.end(status)


def _log_to(run_dir: Path) -> None:
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(run_dir / "logs" / "driver.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("parallax_runner")
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
