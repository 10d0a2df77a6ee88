"""What is launched for a plan: its processes, their launcher and their limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from parallax_runner.config import frozen
from parallax_runner.config.schema import RunConfig
from parallax_runner.launch.control import wire
from parallax_runner.launch.job import Job, LaunchSpec, thread_environment
from parallax_runner.launch.launchers.choose import launcher_of
from parallax_runner.launch.launchers.host_membership import shared_folders
from parallax_runner.launch.launchers.slurm.allocation import sweep_job_id
from parallax_runner.plan.plan import Plan

WORKER = "parallax_runner.worker"


def launch_spec(
    config: RunConfig,
    plan: Plan,
    run_dir: Path,
    *,
    module: str = WORKER,
    ends_early: Callable[[], bool] = lambda: False,
) -> LaunchSpec:
    """Returns the launch specification of a plan. Each worker runs `module`. The processes save and end once
    `ends_early()` returns True. Raises LaunchError if the launcher cannot
    start the plan, for example because there is no route to another host."""
    # Slurm signals all processes of a job at once, but only the driver may react to the signal.
    blocked = {} if sweep_job_id() is None else {wire.BLOCK_SIGNALS: "1"}
    launcher = launcher_of(config, plan)
    return LaunchSpec(
        job=Job(
            run_dir=run_dir,
            workers=plan.workers,
            servers=plan.servers,
            env=thread_environment(config.cluster.threads_per_worker) | blocked | frozen.for_processes(config),
            worker_module=module,
        ),
        launcher=launcher,
        grace_secs=launcher.grace_secs,
        shared=shared_folders(config, run_dir),
        hang_timeout_secs=config.train.hang_timeout_secs,
        stall_timeout_secs=config.train.stall_timeout_secs,
        together=plan.options.waits_for_all,
        ends_early=ends_early,
    )
