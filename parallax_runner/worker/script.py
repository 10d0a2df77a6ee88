"""A worker that runs the user's script again from beginning to end (api/parallel_run.py)."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from parallax_runner.config import frozen
from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import ScriptError
from parallax_runner.launch.child import fail
from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.launch.control.client import ControlClient
from parallax_runner.process.leave import leave
from parallax_runner.worker.printed import Printed

if TYPE_CHECKING:
    from parallax_runner.graph.generators import Borrowed
    from parallax_runner.plan.plan import Plan
    from parallax_runner.shipment.received import Maker


class ScriptSession(Protocol):
    """The part of the session from `parallel_run` (api/session.py) that a worker uses."""

    @property
    def plan(self) -> Plan:
        """The plan of the run."""

    @property
    def runner(self) -> Any:
        """The object that runs the steps (train/step_runner.py)."""

    def close(self) -> None:
        """Ends the session after the script has succeeded."""

    def give_up(self) -> None:
        """Ends the session after the script has failed."""


# The function that a worker runs with the model and data of a call to fit. Returns the fields for the driver's summary.
Work = Callable[[Path, int, ControlClient, "Maker"], dict[str, Any]]
WITHOUT_CALL = "without calling parallel_run or fit in its own process (a call in a child process does not count)"
Result = TypeVar("Result")


def train(run_dir: Path, rank: int, client: ControlClient, maker: Maker) -> dict[str, Any]:
    """Trains as rank `rank`."""
    from parallax_runner.worker.rank import run_rank

    return run_rank(run_dir, rank, client, maker)


@dataclass
class Worker:
    """The state of this process as a worker that runs a script. `work` is the function that fit calls. `generators` is
    set before the script starts. `session` is set once parallel_run has created a session. `pid` is this process, since
    a process that the script forks is no worker."""

    run_dir: Path
    rank: int
    client: ControlClient
    config: RunConfig
    work: Work = train
    generators: Borrowed | None = None
    session: ScriptSession | None = None
    pid: int = field(default_factory=os.getpid)


_workers: list[Worker] = []


def this_worker() -> Worker | None:
    """Returns the Worker object of this process, or None in the process that the user started and in child processes of
    a script."""
    return _workers[0] if _workers and _workers[0].pid == os.getpid() else None


def run_script(run_dir: Path, rank: int, client: ControlClient, work: Work = train) -> None:
    """Runs the script to its end as worker `rank`, and reports the outcome to the driver. If the script calls fit, fit
    calls `work` and then ends this process."""
    config = frozen.load(run_dir)
    worker = Worker(run_dir, rank, client, config, work)
    _workers.append(worker)
    # With fit, the user's own process prints the same text, so the workers' output is not shown.
    if config.redirect_path is None and config.model["_target_"] != frozen.FIT:
        sys.stdout = Printed(sys.stdout, "stdout", client)
        sys.stderr = Printed(sys.stderr, "stderr", client)
    try:
        from parallax_runner.graph.generators import FILE_NAME, Borrowed

        worker.generators = Borrowed(Path(config.model["first_process"]) / FILE_NAME)
        try:
            _run(config)
        except SystemExit as end:
            _check(end, "" if worker.session is not None else f" {WITHOUT_CALL}")
        if worker.session is None:
            raise ScriptError(f"the script ended {WITHOUT_CALL}", exit_status=1)
        worker.session.close()
        _wait_for_others(worker.session.plan, worker.session.runner.step, client)
    except BaseException:
        if worker.session is not None:
            worker.session.give_up()
        raise
    finally:
        _print_plainly()
    client.done(**worker.session.runner.outcome())


def work_and_leave(worker: Worker, make_source: Callable[[], Maker]) -> NoReturn:
    """Does a worker's part of a call to fit, reports the outcome to the driver, and ends this process here, because the
    script after the call is the driver's. The call must not raise: the script could catch any exception."""

    def work() -> dict[str, Any]:
        from parallax_runner.plan import plan as plans

        outcome = worker.work(worker.run_dir, worker.rank, worker.client, make_source())
        plan = plans.load(worker.run_dir / plans.FILE_NAME)
        _wait_for_others(plan, int(outcome.get("steps", 0)), worker.client)
        return outcome

    outcome = or_fail(worker, work)
    worker.client.done(**outcome)
    leave(0)


def or_fail(worker: Worker, do: Callable[[], Result]) -> Result:
    """Returns the result of `do`. If `do` raises an exception, reports it to the driver and ends this process here, so
    that the script cannot catch it."""
    try:
        try:
            return do()
        except SystemExit as end:
            _check(end, " in fit")
            raise
    except BaseException as error:
        script = traceback.extract_stack(sys._getframe(1))
        fail(error, "worker", worker.rank, worker.run_dir, worker.client, script)


def _print_plainly() -> None:
    """Sends later output, including a traceback, only to the log."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, Printed):
            setattr(sys, name, stream.finish())


def _wait_for_others(plan: Plan, step: int, client: ControlClient) -> None:
    """Waits until the scripts of the other workers have ended. If another worker waits in a step that can never end,
    the driver detects this."""
    if plan.options.sync and plan.workers > 1:
        client.doing = Activity(Kind.OTHER_SCRIPTS)
        client.leave(step)


def _run(config: RunConfig) -> None:
    sys.argv[:] = [config.model["path"], *config.model["arguments"]]
    if config.model["module"] is not None:
        sys.path[0] = ""
        runpy.run_module(config.model["module"], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(config.model["path"]).parent)
        runpy.run_path(config.model["path"], run_name="__main__")


def _check(end: SystemExit, where: str) -> None:
    """Raises ScriptError if the script exited with a failure. `where` is appended to the message."""
    if end.code is None or end.code == 0:
        return
    if isinstance(end.code, int):
        raise ScriptError(f"the script ended with exit status {end.code}{where}", exit_status=end.code) from end
    raise ScriptError(str(end.code), exit_status=1) from end
