"""Plans a run again if its cluster has another size (docs/design/0104, 0110)."""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack

from parallax_runner.config.launchers import launcher_class
from parallax_runner.config.schema import CkptConfig, TakeConfig
from parallax_runner.config.worker_numbers import ClusterSize, with_size
from parallax_runner.driver import recovery, report
from parallax_runner.driver.planned_run import planned_run
from parallax_runner.driver.prepared_run import PreparedRun
from parallax_runner.driver.request import Request
from parallax_runner.driver.start_run import started
from parallax_runner.launch.launchers.membership import Membership
from parallax_runner.plan import plan as plans

# How often the launcher is asked for more workers after a checkpoint.
BETWEEN_SECS = 2.0


class Resizing:
    """Decides with how many workers and servers each attempt of a run starts, and when an attempt ends so that more
    can start. `stack` ends with the run's last attempt. `members` is made from the plan with which the run begins."""

    def __init__(self, request: Request, stack: ExitStack) -> None:
        self._request, self._stack = request, stack
        self._members: Membership | None = None
        self._running: ClusterSize | None = None
        self._has_saved = False
        self._ends_early = False
        self._asked_secs = 0.0

    def before_attempt(self, prepared: PreparedRun) -> PreparedRun:
        """Waits for the processes or hosts of the next attempt. Returns the run, planned again if they are others.

        Raises LaunchError if there are fewer workers than the smallest number, and the errors of `planned_run` and
        `started`.
        """
        if not prepared.planned.plan.worker_numbers:
            return prepared
        interrupts = self._request.interrupts
        members = self._members = self._members or self._membership(prepared)
        members.close()
        size = members.available(self._request.config.cluster.wait_secs, lambda: interrupts.received)
        self._has_saved = self._ends_early = False
        if size != ClusterSize.of(prepared.config.cluster) and not interrupts.received:
            prepared = self._planned_again(prepared, size)
        self._running = ClusterSize.of(prepared.config.cluster)
        self._stack.callback(members.close)
        return prepared

    def on_checkpoint(self) -> None:
        """Called when the run has saved a checkpoint. From now on, more workers can be taken in."""
        self._has_saved = True

    def ends_early(self) -> bool:
        """Returns whether the attempt should end, because there are more workers and its steps are saved."""
        members, running, now_secs = self._members, self._running, time.monotonic()
        if members is None or running is None or not self._has_saved:
            return False
        if not self._ends_early and now_secs > self._asked_secs + BETWEEN_SECS:
            self._asked_secs = now_secs
            self._ends_early = members.has_more(running)
        return self._ends_early

    def _membership(self, prepared: PreparedRun) -> Membership:
        config = self._request.config
        found: Membership = launcher_class(config).membership(config, prepared.planned.plan)
        return found

    def _planned_again(self, prepared: PreparedRun, size: ClusterSize) -> PreparedRun:
        """Returns the run on a cluster of this size. It begins at the newest checkpoint of the run."""
        newest = prepared.start.newest_own()
        config = with_size(self._request.config, size)
        if newest is not None:
            config = dataclasses.replace(config, ckpt=_from(config.ckpt, str(newest)))
        request = dataclasses.replace(self._request, config=config)
        planned = planned_run(request)
        plans.save(planned.plan, request.run_dir / plans.FILE_NAME)
        self._stack.close()
        found = self._stack.enter_context(started(request, planned))
        # The checkpoints that this run has written before are its own, too.
        start = dataclasses.replace(found.start, before=prepared.start.before, resume=prepared.start.resume)
        report.tell_size(prepared.planned.plan, planned.plan, size, step=recovery.step_of(start.config))
        return dataclasses.replace(found, start=start)


def _from(ckpt: CkptConfig, prefix: str) -> CkptConfig:
    """Returns the settings that continue from a checkpoint of the run itself."""
    return dataclasses.replace(ckpt, resume=prefix, position="keep", warm_start=None, take=TakeConfig())
