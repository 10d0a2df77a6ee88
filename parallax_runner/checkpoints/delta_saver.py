"""Writes deltas in a thread that runs alongside the training loop."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import prefix_of, step_of
from parallax_runner.checkpoints.delta_files import Delta, sha256_of_sidecar
from parallax_runner.checkpoints.delta_publish import begin_delta, partial_delta, publish_delta
from parallax_runner.checkpoints.delta_save import DeltaSave, WrittenDelta
from parallax_runner.checkpoints.publish import flush
from parallax_runner.checkpoints.rank_exchange import RankLost
from parallax_runner.errors import CheckpointError, reason_in

CLOSE_SECS = 60


@dataclass
class DeltaSaver:
    """A rank's part in saving deltas: every `delta_steps` steps, if there is a checkpoint to which a delta belongs.

    All ranks that take part make the same calls at the same steps. The chief publishes the deltas. `base` is the
    checkpoint to which the next delta belongs: the last one that was saved or, before that, the one in `folder` from
    which the run has resumed. None if there is neither.
    """

    writer: DeltaSave
    folder: Path
    delta_steps: int
    is_chief: bool
    base: Path | None = None
    _writing: Future[None] | None = None
    _copied: threading.Event = field(default_factory=threading.Event)

    def begin(self, session: tf.Session) -> None:
        """Begins to notice changes. The variables have the values of `base`, if it is not None."""
        self.writer.begin_again(session)

    def begin_again(self, session: tf.Session, step: int) -> None:
        """Begins again after the checkpoint of a step has been saved. No step may run. The checkpoint may still be
        written."""
        self.writer.begin_again(session)
        self.base = prefix_of(self.folder, step)

    def is_due(self, step: int) -> bool:
        """Returns whether a delta is due after `step` steps. All ranks get the same answer."""
        return self.base is not None and step % self.delta_steps == 0 and step > step_of(self.base)

    def save(self, session: tf.Session, *, step: int, examples: int) -> None:
        """Waits until steps may run again. A thread then writes the remaining values. The checkpoint to which the delta
        belongs must be written.

        Raises CheckpointError if the previous delta could not be written.
        """
        self.rest()
        self._copied.clear()
        written = partial_delta(self.folder)
        if self.is_chief:
            with self._disk_errors(step):
                begin_delta(self.folder)
        self._writing = Future()
        arguments = (session, written, step, examples, self._writing)
        threading.Thread(target=self._write, args=arguments, name="delta", daemon=True).start()
        self._copied.wait()

    def rest(self) -> None:
        """Waits for the delta that is being written. Raises CheckpointError if it could not be written."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def raise_if_failed(self) -> None:
        """Does the same as `rest` if no delta is being written."""
        if self._writing is not None and self._writing.done():
            self.rest()

    def close(self) -> None:
        """When a run fails for another reason, waits for the delta that is being written, but not forever."""
        if self._writing is not None:
            with contextlib.suppress(TimeoutError):
                self._writing.exception(CLOSE_SECS)

    def _write(self, session: tf.Session, written: Path, step: int, examples: int, done: Future[None]) -> None:
        """Writes a delta. Runs in a thread of its own."""
        started = time.perf_counter()
        try:
            found = self._written(session, written, step)
            if self.is_chief:
                self._publish(written, found, step, examples, started)
        except BaseException as error:
            if self.is_chief:
                shutil.rmtree(written.parent, ignore_errors=True)
            done.set_exception(error)
        else:
            done.set_result(None)
        finally:
            self._copied.set()

    def _written(self, session: tf.Session, written: Path, step: int) -> WrittenDelta:
        try:
            return self.writer.write(session, written, step, self._copied.set)
        except RankLost as error:
            if not self.is_chief:  # the process of the lost rank reports the failure
                return WrittenDelta()
            raise self._failure(step, f"the variables could not be read: {error}") from error
        except tf.errors.OpError as error:
            raise self._failure(step, f"the variables could not be read: {reason_in(str(error.message))}") from error

    def _publish(self, written: Path, found: WrittenDelta, step: int, examples: int, started: float) -> None:
        assert self.base is not None
        if found.not_finite is not None:
            raise CheckpointError(
                f"delta of step {step} was not written, because «{found.not_finite}» contains NaN or infinite values. "
                f"{self._what_remains()}"
            )
        if found.error is not None:
            raise self._failure(step, found.error)
        with self._disk_errors(step):
            flush(written)
            delta = Delta(step, examples, sha256_of_sidecar(self.base), rows=found.rows, elements=found.elements)
            delta = publish_delta(written, self.base, delta, found.files)
        secs, rows = time.perf_counter() - started, sum(found.rows.values())
        # This line is written only to the log. In a script's worker, `sys.stdout` would also go to the user's terminal.
        told = f"delta of step {step}: {rows:,} rows, {delta.size_bytes:,} bytes, written in {secs:.2f} s"
        print(told, file=sys.__stdout__, flush=True)

    @contextlib.contextmanager
    def _disk_errors(self, step: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failure(step, error.strerror or str(error)) from error

    def _failure(self, step: int, reason: str) -> CheckpointError:
        return CheckpointError(
            f"delta of step {step} could not be written to {self.folder}: {reason}. {self._what_remains()}"
        )

    def _what_remains(self) -> str:
        return f"The checkpoint {self.base} and its last delta remain"
