"""`parallel_run`: drives the run in the process that the user started, and returns a session in each worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from parallax_runner.api.config import Config
from parallax_runner.api.first_process import check_first_process
from parallax_runner.api.one_by_one import cluster_lines
from parallax_runner.api.script import ScriptSource, started_as
from parallax_runner.errors import ConfigError, LaunchError
from parallax_runner.process.exit_status import tell
from parallax_runner.process.terminal import keep_going
from parallax_runner.worker.script import this_worker

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

    from parallax_runner.api.session import Session

FUNCTION = "parallel_run"
ONCE = "start the script once, and list the hosts and slots of the workers in resource_info"


def parallel_run(
    single_gpu_graph: tf.Graph,
    resource_info: str | os.PathLike[str] | Sequence[str] | None = None,
    sync: bool = True,
    parallax_config: Config | None = None,
) -> tuple[Session, int, int, int]:
    """Trains a single-device graph on several devices.

    The first process plans the run, starts servers and workers, and exits here with the run's exit status. Each worker
    runs the same script. In a worker, this function returns (session, number of workers, the worker's rank, number of
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
    sys.exit(_run(graph, resource_info, sync, config))


def _run(graph: tf.Graph, resource_info: object, sync: bool, config: Config) -> int:
    from parallax_runner.api.overrides import overrides_of
    from parallax_runner.api.own_groups import check_own_groups
    from parallax_runner.config.compose import Composer
    from parallax_runner.config.running_job import job_of_call
    from parallax_runner.driver.check import checked_job
    from parallax_runner.driver.only_driver import check_only_driver
    from parallax_runner.driver.own_optimizer import check_no_optimizer
    from parallax_runner.driver.pipeline import drive
    from parallax_runner.graph.script_graph import has_partitioner

    keep_going()
    try:
        check_first_process(FUNCTION)
        check_own_groups(config.overrides, FUNCTION)
        lines = overrides_of(
            config,
            resource_info=resource_info,  # type: ignore[arg-type]
            sync=sync,
            has_partitioner=has_partitioner(graph),
        )
        seed = [] if graph.seed is None else [f"train.seed={graph.seed % 2**31}"]
        try:
            job = Composer().job([*seed, *lines, *cluster_lines(), *started_as()])
            check_no_optimizer(
                job.origins, f"{FUNCTION} trains the script's graph", "change the optimizer in the script"
            )
            composed = checked_job(job, FUNCTION)
        except ConfigError as error:
            raise ConfigError(str(error).replace("(command line)", f"({FUNCTION})")) from error
        check_only_driver(composed.cluster.launcher, once=ONCE)
        with job_of_call(job.origins.given_by(FUNCTION)):
            drive(composed, ScriptSource(graph))
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return tell(error)
    return 0
