"""Coordinates a worker with the other workers. Determines when the worker may start a step, which step is next, and
when all workers stop."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Protocol

import tensorflow.compat.v1 as tf

from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.rewrite.distributed_graph import CLOSED, DistributedGraph


class Control(Protocol):
    """The part of the connection to the driver that this module uses."""

    stop_requested: threading.Event
    last_step: int | None

    @property
    def doing(self) -> Activity:
        """This rank's current activity."""

    @doing.setter
    def doing(self, what: Activity) -> None: ...

    def announce_last_step(self, step: int) -> None:
        """Makes all ranks stop after `step`."""


@dataclass
class Peers:
    """Coordinates this worker with the other workers between two steps.

    In synchronous training, all workers take part in each step, and no coordination is needed. Otherwise, some replicas
    may be ahead of others, or a step may complete without this worker (backup workers).
    """

    session: tf.Session
    distributed: DistributedGraph
    control: Control
    _closed: bool = False
    _staleness: list[int] = field(default_factory=list)
    _dropped: int = 0

    @property
    def watched(self) -> list[tf.Tensor]:
        """The tensors to fetch with a step. Their values are passed to `watch`."""
        admission = self.distributed.admission
        tensors = (self.distributed.staleness, None if admission is None else admission.admitted)
        return [tensor for tensor in tensors if tensor is not None]

    def wait_to_start(self, step: int) -> None:
        """Waits until `step` may begin."""
        if self.distributed.may_start is not None:
            self.control.doing = Activity(Kind.BEFORE_STEP, step)
            self.session.run(self.distributed.may_start)
        self.control.doing = Activity(Kind.STEP, step)

    def watch(self, values: list[Any]) -> bool:
        """Records the values of `watched` in a step. Returns whether the step includes this worker's gradients."""
        if self.distributed.staleness is not None:
            self._staleness += values[0].tolist()
        if self.distributed.admission is None:
            return True
        self._dropped += not values[0]
        return bool(values[0])

    def next_step(self, step: int) -> int:
        """Returns the number of completed steps at the end of a step that began when `step` steps were complete.

        The number is `step` + 1, or larger if other workers are ahead. The number is `step` if the step will never
        complete because all workers stop.
        """
        if self.distributed.admission is None:
            return step + 1
        self.control.doing = Activity(Kind.END_OF_STEP, step + 1)
        found = int(self.session.run(self.distributed.admission.next_step))
        self._closed = found == CLOSED
        return step if self._closed else found

    def is_last(self, step: int) -> bool:
        """Returns whether this rank stops after `step` because a stop was requested.

        The chief declares its next step to be the last step. In synchronous training, every step needs the chief.
        Otherwise, other ranks can be ahead of the chief by at most the staleness bound. If ranks may be any number of
        steps apart, each rank stops after its current step. With backup workers, all ranks stop when no more steps can
        complete.
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
        """Stops all workers if there are backup workers, because later steps would not have enough workers if only some
        workers stopped."""
        if self.distributed.admission is not None and not self._closed:
            self.session.run(self.distributed.admission.close)
            self._closed = True

    def leave(self, step: int) -> int:
        """If workers do not wait for each other in every step, waits until all workers have completed their last step.
        Returns the number of completed steps."""
        if self.distributed.leave is None:
            return step
        self.control.doing = Activity(Kind.LAST_STEPS)
        self.session.run(self.distributed.leave)
        admission = self.distributed.admission
        return step if admission is None else int(self.session.run(admission.steps_done))

    def take_observed(self) -> dict[str, Any]:
        """Returns fields for a progress report: the values that `watch` has recorded since the last report."""
        observed: dict[str, Any] = {} if self.distributed.staleness is None else {"staleness": self._staleness}
        if self.distributed.admission is not None:
            observed["dropped"] = self._dropped
        self._staleness, self._dropped = [], 0
        return observed
