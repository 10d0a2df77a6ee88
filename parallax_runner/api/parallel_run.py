"""`parallel_run`: drives the run in the process that the user started, and returns a session in each worker."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from parallax_runner.api.config import Config
from parallax_runner.api.first_process import check_first_process
from parallax_runner.api.one_run import only_one_run
from parallax_runner.api.script import ScriptSource, started_as
from parallax_runner.api.scripts_without_driver import cluster_lines, join_or_refuse
from parallax_runner.errors import ConfigError, LaunchError
from parallax_runner.process.exit_status import tell
from parallax_runner.process.terminal import keep_going
from parallax_runner.worker.script import this_worker

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

    from parallax_runner.api.session import Session
    from parallax_runner.config.compose import Job

FUNCTION = "parallel_run"
ONCE = "start the script once, and list the hosts and slots of the workers in resource_info"


def parallel_run(
    single_gpu_graph: tf.Graph,
    resource_info: str | os.PathLike[str] | Sequence[str] | None = None,
    sync: bool = True,
    parallax_config: Config | None = None,
) -> tuple[Session, int, int, int]:
    """Trains a single-device graph on several devices.

    The first process plans the run, starts servers and workers, and exits here with the run's exit status. If TF_CONFIG
    names several processes, this process takes its place among them, and exits here when the run ends. Each worker runs
    the same script. In a worker, this function returns (session, number of workers, the worker's rank, number of
    replicas in the worker). `resource_info` is a file with one line per host, such as `host: id,id`, or a list of such
    lines. None means two workers on this machine.
    """
    config = Config() if parallax_config is None else parallax_config
    worker = this_worker()
    if worker is None:
        _drive(single_gpu_graph, resource_info, sync, config)
    if worker.session is not None:
        raise LaunchError("parallel_run was called a second time; call it once per script")
    from parallax_runner.api.join import join

    session = worker.session = join(worker, single_gpu_graph, config)
    plan = session.plan
    return session, plan.workers, worker.rank, plan.replicas_per_worker


def _drive(graph: tf.Graph, resource_info: object, sync: bool, config: Config) -> NoReturn:
    status = _run(graph, resource_info, sync, config)
    # While Python ends, TensorFlow still logs about objects that were never used. Its stream is closed by then, and
    # logging would print a traceback for each of these messages.
    logging.raiseExceptions = False
    sys.exit(status)


def _run(graph: tf.Graph, resource_info: object, sync: bool, config: Config) -> int:
    from parallax_runner.api.own_groups import check_own_groups
    from parallax_runner.config.compose import resolve
    from parallax_runner.config.running_job import job_of_call
    from parallax_runner.driver.check import checked_job
    from parallax_runner.driver.own_optimizer import check_no_optimizer
    from parallax_runner.driver.pipeline import drive

    keep_going()
    try:
        check_first_process(FUNCTION)
        check_own_groups(config.overrides, FUNCTION)
        lines = _lines(graph, resource_info, sync, config)
        try:
            join_or_refuse(lambda: resolve(_composed(lines)).cluster, once=ONCE)
            job = _composed(lines)
            check_no_optimizer(
                job.origins,
                f"{FUNCTION} trains the script's graph",
                "change the optimizer in the script",
                is_keras=False,
            )
            composed = checked_job(job, FUNCTION)
        except ConfigError as error:
            error.parts = error.parts.given_by(FUNCTION)
            raise
        with only_one_run(FUNCTION), job_of_call(job.origins.given_by(FUNCTION)):
            drive(composed, ScriptSource(graph))
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return tell(error)
    return 0


def _lines(graph: tf.Graph, resource_info: object, sync: bool, config: Config) -> list[str]:
    """Returns the overrides that describe the call, except those for the cluster of a script that is started once for
    each worker."""
    from parallax_runner.api.overrides import overrides_of
    from parallax_runner.graph.script_graph import has_partitioner

    lines = overrides_of(
        config,
        resource_info=resource_info,  # type: ignore[arg-type]
        sync=sync,
        has_partitioner=has_partitioner(graph),
    )
    seed = [] if graph.seed is None else [f"train.seed={graph.seed % 2**31}"]
    return [*seed, *lines]


def _composed(lines: Sequence[str]) -> Job:
    from parallax_runner.config.compose import Composer

    return Composer().job([*lines, *cluster_lines(), *started_as()])
