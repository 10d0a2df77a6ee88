"""The other workers, from where one of them stands: when it may go on, which step is next, and when all end."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Protocol

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.distributed_graph import CLOSED, DistributedGraph


class Control(Protocol):
    """What is needed here of the connection to the driver."""

    stop_requested: threading.Event
    last_step: int | None

    @property
    def doing(self) -> str:
        """What this rank is at."""

    @doing.setter
    def doing(self, what: str) -> None: ...

    def announce_last_step(self, step: int) -> None:
        """Lets all ranks end after `step`."""


@dataclass
class Peers:
    """In synchronous training a step is one of all workers, and there is nothing to do here between two of them.

    Otherwise replicas may be ahead of one another, or a step may be complete without this worker (backup workers).
    """

    session: tf.Session
    distributed: DistributedGraph
    control: Control
    _closed: bool = False
    _staleness: list[int] = field(default_factory=list)
    _dropped: int = 0

    @property
    def watched(self) -> list[tf.Tensor]:
        """What is to be fetched with a step, for `watch`."""
        admission = self.distributed.admission
        tensors = (self.distributed.staleness, None if admission is None else admission.admitted)
        return [tensor for tensor in tensors if tensor is not None]

    def wait_to_start(self, step: int) -> None:
        """Returns when `step` may begin."""
        if self.distributed.may_start is not None:
            self.control.doing = f"waiting for slower workers before step {step}"
            self.session.run(self.distributed.may_start)
        self.control.doing = f"step {step}"

    def watch(self, values: list[Any]) -> bool:
        """Notes what `watched` was in a step; whether this worker's gradients are in it."""
        if self.distributed.staleness is not None:
            self._staleness += values[0].tolist()
        if self.distributed.admission is None:
            return True
        self._dropped += not values[0]
        return bool(values[0])

    def next_step(self, step: int) -> int:
        """How many steps are done after one that began when `step` were: one more, unless others are further; `step`
        where it will never be complete, since all end."""
        if self.distributed.admission is None:
            return step + 1
        self.control.doing = f"waiting for the end of step {step + 1}"
        found = int(self.session.run(self.distributed.admission.next_step))
        self._closed = found == CLOSED
        return step if self._closed else found

    def is_last(self, step: int) -> bool:
        """Whether a stop was asked for and `step` is the one after which all ranks agreed to end.

        The chief chooses the step that it begins next: no rank can be beyond it, since every step needs the chief, or
        only by a bound. Where ranks may be any number of steps apart each ends where it is; with backup workers all
        end where no step will be complete any more.
        """
        control = self.control
        is_asked = self.distributed.rank == 0 and control.stop_requested.is_set()
        if self.distributed.admission is not None:
            if is_asked:
                self.close()
            return self._closed
        if is_asked and control.last_step is None:
            control.announce_last_step(step + 1)
        is_anywhere = self.distributed.staleness is not None and self.distributed.may_start is None
        return control.last_step is not None and (step >= control.last_step or is_anywhere)

    def close(self) -> None:
        """With backup workers, lets all of them end: who ends takes part in no step, and steps may lack more."""
        if self.distributed.admission is not None and not self._closed:
            self.session.run(self.distributed.admission.close)
            self._closed = True

    def leave(self, step: int) -> int:
        """Waits for all to have done their last step, where they do not do each together; how many are done then."""
        if self.distributed.leave is None:
            return step
        self.control.doing = "waiting for the other workers' last steps"
        self.session.run(self.distributed.leave)
        admission = self.distributed.admission
        return step if admission is None else int(self.session.run(admission.steps_done))

    def take_observed(self) -> dict[str, Any]:
        """For a report of progress: what `watch` noted since the last one."""
        observed: dict[str, Any] = {} if self.distributed.staleness is None else {"staleness": self._staleness}
        if self.distributed.admission is not None:
            observed["dropped"] = self._dropped
        self._staleness, self._dropped = [], 0
        return observed
