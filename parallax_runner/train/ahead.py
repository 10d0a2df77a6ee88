"""Prepares each step while the previous step runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.distributed_graph import Ahead, Carried

POOL = 1  # index of the session's thread pool that prepares the next step; pool 0 runs the step

Batch = Mapping[str, np.ndarray]


def give_pools(config: tf.ConfigProto) -> None:
    """Adds a separate one-thread pool for preparing the next step, so that the preparation does not wait for the ops of
    the running step."""
    for threads in (config.inter_op_parallelism_threads, 1):
        config.session_inter_op_thread_pool.add(num_threads=threads)


@dataclass
class StepsAhead:
    """Prepares the steps of one rank in a session, and applies the part of each update that is deferred to the next
    step.

    The session's configuration must come from `give_pools`. All ranks must prepare the same steps. `_prepared` contains
    the values to feed to the next step. `_left` is the part of the last step's update that has not been applied yet.
    """

    ahead: Ahead
    session: tf.Session
    _prepared: dict[tf.Tensor, Any] = field(default_factory=dict)
    _left: dict[tf.Tensor, Any] = field(default_factory=dict)
    _follows: bool = False
    _thread: threading.Thread | None = None
    _next: dict[tf.Tensor, Any] | BaseException | None = None
    _trace: tf.RunMetadata | None = None

    def start(self, batch: Batch, following: Batch | None, *, is_traced: bool = False) -> dict[tf.Tensor, Any]:
        """Returns the values to feed to the step in addition to its `batch`.

        Starts preparing the next step, whose batch is `following`. Call `finish` to wait for the preparation. If
        `following` is None, no step follows.
        """
        if not self._prepared:
            self._prepared = self._prepare_first(batch)
        self._follows = following is not None
        if following is None:
            self.settle()
            return self._prepared
        self._trace = tf.RunMetadata() if is_traced else None
        # The thread is a daemon, since it may wait forever for ranks that have ended.
        self._thread = threading.Thread(target=self._work, args=(following,), name="ahead", daemon=True)
        self._thread.start()
        behind = self.ahead.behind
        return self._prepared if behind is None else self._prepared | {behind.alone: 0}

    @property
    def fetches(self) -> list[tf.Tensor]:
        """The tensors to fetch with a step that has started. Pass their values to `finish`."""
        behind = self.ahead.behind
        return [one.fetched for one in behind.carried] if behind is not None and self._follows else []

    def finish(self, left: Sequence[Any] = (), trace: tf.RunMetadata | None = None) -> None:
        """Waits until the next step is prepared. Adds the ops of the preparation to `trace`, which is the trace of the
        running step.

        `left` contains the values of `fetches`. Raises the error that the preparation raised.
        """
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if trace is not None and self._trace is not None:
            trace.step_stats.dev_stats.extend(self._trace.step_stats.dev_stats)
        self.raise_if_failed()
        assert isinstance(self._next, dict)
        self._prepared, self._next = self._next, None
        carried = () if self.ahead.behind is None else self.ahead.behind.carried
        self._left = {one.fed: value for one, value in zip(carried, left, strict=True)}

    def raise_if_failed(self) -> None:
        """If the preparation failed, raises its error. In that case the running step fails too, because it waits for
        the preparation."""
        if isinstance(self._next, BaseException):
            raise self._next

    def settle(self) -> None:
        """Applies the part of the last step's update that has not been applied yet.

        Call this method before you read variables. It runs a collective, so all ranks must call it.
        """
        if self._left:
            assert self.ahead.behind is not None
            self.session.run(self.ahead.behind.apply, self._left)
            self._left = {}

    def _work(self, batch: Batch) -> None:
        try:
            self._next = self._prepare_next(batch)
        except BaseException as error:  # the training thread raises it
            self._next = error
            if self.ahead.behind is not None:
                with contextlib.suppress(tf.errors.OpError, RuntimeError):  # the session may already be closed
                    self.session.run(self.ahead.behind.give_up)

    def _prepare_first(self, batch: Batch) -> dict[tf.Tensor, Any]:
        return self._found(self.ahead.first, self._of_batch(batch))

    def _prepare_next(self, batch: Batch) -> dict[tf.Tensor, Any]:
        ahead, behind = self.ahead, self.ahead.behind
        feeds = self._prepared | self._of_batch(batch)
        if behind is None:
            return self._found([*ahead.asked, *ahead.rows], feeds)
        # Gradients that are left from the last step are sent in a second run, because the running step is waiting for
        # its own rows in the meantime.
        route = [Carried(tensor, tensor) for tensor in ahead.route]
        asked = self._found([*ahead.asked, *route], feeds, [behind.tell])
        by_route = {tensor: asked.pop(tensor) for tensor in ahead.route}
        return asked | self._found(ahead.rows, by_route | self._left, [behind.apply])

    def _of_batch(self, batch: Batch) -> dict[tf.Tensor, Any]:
        return {placeholder: batch[name] for name, placeholder in self.ahead.features.items()}

    def _found(
        self, carried: Sequence[Carried], feeds: dict[tf.Tensor, Any], ops: Sequence[tf.Operation] = ()
    ) -> dict[tf.Tensor, Any]:
        # A full trace includes the device trace. A process can record only one device trace at a time, and the running
        # step already records one.
        trace = None if self._trace is None else tf.RunMetadata()
        level = tf.RunOptions.NO_TRACE if trace is None else tf.RunOptions.SOFTWARE_TRACE
        options = tf.RunOptions(inter_op_thread_pool=POOL, trace_level=level)
        fetches = [[one.fetched for one in carried], ops]
        values, _ = self.session.run(fetches, feeds, options=options, run_metadata=trace)
        if self._trace is not None and trace is not None:
            self._trace.step_stats.dev_stats.extend(trace.step_stats.dev_stats)
        return {one.fed: value for one, value in zip(carried, values, strict=True)}
