"""Runs a short job in its own folder: a row trial or a calibration."""

from __future__ import annotations

from pathlib import Path

from parallax_runner.config import frozen
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.launch_spec import WORKER, launch_spec
from parallax_runner.errors import LaunchError
from parallax_runner.launch import processes
from parallax_runner.launch.interrupts import Interrupted, Interrupts
from parallax_runner.plan import plan as plans


def run_child_job(
    config: RunConfig,
    plan: plans.Plan,
    *,
    module: str = WORKER,
    interrupts: Interrupts | None = None,
) -> processes.RunResult:
    """Runs the processes of `plan` to completion in the folder `config.run_dir`. Each worker runs `module`."""
    folder = Path(config.run_dir)
    frozen.freeze(config, folder)
    plans.save(plan, folder / plans.FILE_NAME)
    spec = launch_spec(config, plan, folder, module=module)
    return processes.run(spec, on_message=lambda _: None, interrupts=interrupts)


def require_finished(result: processes.RunResult, what: str, folder: Path) -> None:
    """Raises Interrupted if the user interrupted the job, and LaunchError if the job failed."""
    if result.status == "interrupted":
        raise Interrupted
    if result.status != "finished":
        raise LaunchError(f"{what}: {result.failure} (logs: {folder / 'logs'})")
