"""Prepares each step while the previous step runs."""

from __future__ import annotations

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
    """Prepares the steps of one rank in a session.

    The session's configuration must come from `give_pools`. All ranks must prepare the same steps. `_prepared` contains
    the values to feed to the next step.
    """

    ahead: Ahead
    session: tf.Session
    _prepared: dict[tf.Tensor, Any] = field(default_factory=dict)
    _thread: threading.Thread | None = None
    _next: dict[tf.Tensor, Any] | BaseException | None = None
    _trace: tf.RunMetadata | None = None

    def start(self, batch: Batch, following: Batch | None, *, is_traced: bool = False) -> dict[tf.Tensor, Any]:
        """Returns the values to feed to the step in addition to its `batch`.

        Starts preparing the next step, whose batch is `following`. Call `finish` to wait for the preparation. If
        `following` is None, no step follows.
        """
        if not self._prepared:
            self._prepared = self._prepare(self.ahead.first, batch)
        if following is None:
            return self._prepared
        self._trace = tf.RunMetadata() if is_traced else None
        # The thread is a daemon, since it may wait forever for ranks that have ended.
        self._thread = threading.Thread(target=self._work, args=(following,), name="ahead", daemon=True)
        self._thread.start()
        return self._prepared

    def finish(self, trace: tf.RunMetadata | None = None) -> None:
        """Waits until the next step is prepared. Adds the ops of the preparation to `trace`, which is the trace of the
        step that has run.

        Raises the error that the preparation raised.
        """
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if trace is not None and self._trace is not None:
            trace.step_stats.dev_stats.extend(self._trace.step_stats.dev_stats)
        prepared, self._next = self._next, None
        if isinstance(prepared, BaseException):
            raise prepared
        assert prepared is not None
        self._prepared = prepared

    def _work(self, batch: Batch) -> None:
        try:
            self._next = self._prepare(self.ahead.later, batch)
        except BaseException as error:  # the training thread raises it
            self._next = error

    def _prepare(self, carried: Sequence[Carried], batch: Batch) -> dict[tf.Tensor, Any]:
        """Prepares the step with this batch. Returns the values to feed to the step."""
        of_batch = {placeholder: batch[name] for name, placeholder in self.ahead.features.items()}
        # A full trace includes the device trace. A process can record only one device trace at a time, and the running
        # step already records one.
        level = tf.RunOptions.NO_TRACE if self._trace is None else tf.RunOptions.SOFTWARE_TRACE
        options = tf.RunOptions(inter_op_thread_pool=POOL, trace_level=level)
        fetches = [one.fetched for one in carried]
        values = self.session.run(fetches, self._prepared | of_batch, options=options, run_metadata=self._trace)
        return {one.fed: value for one, value in zip(carried, values, strict=True)}
