"""Plans a run again if its cluster has another number of workers (docs/design/0104)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import ExitStack

from parallax_runner.config.schema import CkptConfig, RunConfig, TakeConfig
from parallax_runner.config.worker_numbers import with_workers
from parallax_runner.driver import recovery, report
from parallax_runner.driver.planned_run import planned_run
from parallax_runner.driver.prepared_run import PreparedRun
from parallax_runner.driver.request import Request
from parallax_runner.driver.start_run import started
from parallax_runner.launch.launchers.choose import launcher_of
from parallax_runner.launch.launchers.resizable import ResizableLauncher
from parallax_runner.plan import plan as plans
from parallax_runner.plan.plan import Plan

# How often the launcher is asked for more workers after a checkpoint.
BETWEEN_SECS = 2.0


class Resizing:
    """Decides with how many workers each attempt of a run starts, and when an attempt ends so that more workers can
    start. `stack` ends with the run's last attempt."""

    def __init__(self, request: Request, stack: ExitStack) -> None:
        self._request, self._stack = request, stack
        self._numbers: Sequence[int] = ()
        self._running = 0
        self._launcher: ResizableLauncher | None = None
        self._has_saved = False
        self._ends_early = False
        self._asked_secs = 0.0

    def before_attempt(self, prepared: PreparedRun) -> PreparedRun:
        """Waits for the workers of the next attempt. Returns the run, planned again if their number differs.

        Raises LaunchError if there are fewer workers than the smallest number, and the errors of `planned_run` and
        `started`.
        """
        plan = prepared.planned.plan
        if not plan.worker_numbers:
            return prepared
        self._note(prepared.config, plan)
        number = self._available()
        if number == plan.workers or self._request.interrupts.received:
            return prepared
        prepared = self._planned_again(prepared, number)
        self._note(prepared.config, prepared.planned.plan)
        return prepared

    def on_checkpoint(self) -> None:
        """Called when the run has saved a checkpoint. From now on, more workers can be taken in."""
        self._has_saved = True

    def ends_early(self) -> bool:
        """Returns whether the attempt should end, because there are more workers and its steps are saved."""
        launcher, now_secs = self._launcher, time.monotonic()
        if launcher is None or not self._has_saved:
            return False
        if not self._ends_early and now_secs > self._asked_secs + BETWEEN_SECS:
            self._asked_secs = now_secs
            self._ends_early = launcher.has_more(self._numbers, self._running)
        return self._ends_early

    def _note(self, config: RunConfig, plan: Plan) -> None:
        launcher = launcher_of(config, plan)
        assert isinstance(launcher, ResizableLauncher), "only such a launcher has worker numbers"
        self._launcher, self._numbers, self._running = launcher, plan.worker_numbers, plan.workers
        self._has_saved = self._ends_early = False

    def _available(self) -> int:
        assert self._launcher is not None
        wait_secs, interrupts = self._request.config.cluster.wait_secs, self._request.interrupts
        return self._launcher.available(self._numbers, wait_secs, lambda: interrupts.received)

    def _planned_again(self, prepared: PreparedRun, number: int) -> PreparedRun:
        """Returns the run with `number` workers. It begins at the newest checkpoint of the run."""
        newest = prepared.start.newest_own()
        config = with_workers(self._request.config, number)
        if newest is not None:
            config = dataclasses.replace(config, ckpt=_from(config.ckpt, str(newest)))
        request = dataclasses.replace(self._request, config=config)
        planned = planned_run(request)
        plans.save(planned.plan, request.run_dir / plans.FILE_NAME)
        self._stack.close()
        found = self._stack.enter_context(started(request, planned))
        # The checkpoints that this run has written before are its own, too.
        start = dataclasses.replace(found.start, before=prepared.start.before, resume=prepared.start.resume)
        report.tell_size(prepared.planned.plan.workers, number, step=recovery.step_of(start.config))
        return dataclasses.replace(found, start=start)


def _from(ckpt: CkptConfig, prefix: str) -> CkptConfig:
    """Returns the settings that continue from a checkpoint of the run itself."""
    return dataclasses.replace(ckpt, resume=prefix, position="keep", warm_start=None, take=TakeConfig())
