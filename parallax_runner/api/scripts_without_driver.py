"""Supports scripts that are started once for each worker, as in systems without a driver. The process with rank 0
drives the run, and the other processes stand by."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from parallax_runner.config.launched_processes import TF_CONFIG, World, worlds
from parallax_runner.config.launchers import declared_by
from parallax_runner.config.schema import ClusterConfig
from parallax_runner.driver.only_driver import check_outside_workers, check_started_once, is_surplus
from parallax_runner.errors import ConfigError, LaunchError, ParallaxError, Setting
from parallax_runner.launch.launchers.slurm import allocation
from parallax_runner.process.exit_status import tell
from parallax_runner.process.leave import leave
from parallax_runner.worker.script import this_worker

if TYPE_CHECKING:
    from parallax_runner.frontdoors.door import Task

_lines: list[str] = []


def cluster_lines() -> list[str]:
    """Returns the overrides that describe the cluster of this script. The list is empty if the script was started only
    once."""
    return list(_lines)


def take_part(read: Callable[[], Task | None]) -> None:
    """Gives this process the role that `read` returns. `read` may raise ConfigError, and returns None if the script was
    started only once.

    In rank 0, the script continues and drives the run, while another process on the same host is the worker. All other
    processes exit here when the run ends. This function does nothing in a worker that a driver has started.
    """
    if this_worker() is not None:
        return
    try:
        task = read()
        if task is not None:
            check_outside_workers("this script")
            _become(task)
    except ParallaxError as error:
        sys.exit(tell(error))


def join_or_refuse(read_cluster: Callable[[], ClusterConfig], *, once: str) -> None:
    """Takes part in the cluster of TF_CONFIG, if that variable names several processes. Refuses to start one run in
    each of several processes that another launcher has started.

    `read_cluster` returns the cluster of the run as the script has configured it, and is called only if there are
    several processes. `once` tells the user how to start the training once. Ends this process here if it has another
    role than the driver's. Raises ConfigError or LaunchError.
    """
    found = worlds()
    if not found and not allocation.is_surplus_task():
        return
    cluster = read_cluster()
    if declared_by(cluster.launcher).processes_stand_by:  # set by the user, or by `take_part`
        return
    if found and found[0].variable == TF_CONFIG:
        _join(found[0], cluster)
        return
    if is_surplus(cluster.launcher):
        leave(0)
    check_started_once(cluster.launcher, once=once)


def _join(world: World, cluster: ClusterConfig) -> None:
    """Takes part in the cluster of TF_CONFIG."""
    if cluster.resource_info is not None:
        raise ConfigError(f"{world.told} already names the machine of each process").about(
            Setting.of("cluster.resource_info", cluster.resource_info),
            remedy=f"omit this setting, or unset {TF_CONFIG} and start the script once",
        )
    from parallax_runner.frontdoors.tf_config import task_in

    _become(task_in(os.environ))


def _become(task: Task) -> None:
    if _lines:
        raise LaunchError("this script sets its rank a second time; set the rank only once")
    from parallax_runner.frontdoors.with_driver import start_beside
    from parallax_runner.launch.launchers.manual.stand_by import DEFAULT_TIMEOUT_SECS, stand_by

    task.prepare()
    if not task.starts_driver:
        leave(stand_by(task.role, task.rendezvous, task.index, address=task.address, timeout_secs=DEFAULT_TIMEOUT_SECS))
    _lines.extend(task.driver_settings())
    worker = start_beside("parallax_runner.worker", task.worker_options(DEFAULT_TIMEOUT_SECS))
    atexit.register(_end, worker, os.getpid())


def _end(worker: subprocess.Popen[bytes], pid: int) -> None:
    """Ends the worker. Does nothing in a process that was forked from this process."""
    if os.getpid() == pid:
        worker.terminate()
        worker.wait()
