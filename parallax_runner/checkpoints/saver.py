"""Writes checkpoints in a thread that runs alongside the training loop."""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints import best as best_checkpoint
from parallax_runner.checkpoints import checkpoint_files
from parallax_runner.checkpoints import publish as checkpoint_folder
from parallax_runner.checkpoints.checkpoint_files import Sidecar
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.joint_save import JointSave, Written
from parallax_runner.checkpoints.rank_exchange import RankLost
from parallax_runner.checkpoints.writer import CheckpointWriter, not_finite
from parallax_runner.errors import CheckpointError, reason_in
from parallax_runner.files.literal_path import literal

log = logging.getLogger(__name__)

CLOSE_SECS = 60


@dataclass
class _Save:
    """A checkpoint that is being saved. `copied` is set when steps may run again, if all ranks save together."""

    session: tf.Session
    written: Path
    step: int
    examples: int
    epoch_state: Callable[[], Mapping[str, Any] | None]
    done: Future[tuple[Path, float]] = field(default_factory=Future)
    copied: threading.Event = field(default_factory=threading.Event)


@dataclass
class CheckpointSaver:
    """Writes a run's checkpoints on the chief: every `save_steps` steps, every `save_secs` seconds, and at the end.

    The loop waits only until the variables have been read. A thread then fetches, writes and checks the values. A
    checkpoint is not published if a variable in `check_finite` (full names) contains a NaN or infinite value. The
    thread calls `run_id` when it writes a sidecar, and `on_written` for each checkpoint before it deletes older
    checkpoints. If steps do not wait for the chief, a checkpoint is named after the number of steps that it contains,
    and `global_batch` is the number of examples per step. In a run of `fit`, `ask_epoch` asks the driver for the state
    of the epoch at a step, and returns a function that waits for the answer. If variables are spread over the ranks,
    all ranks write together, and `copy_bytes` has the same meaning as in `JointSave`.
    """

    ops: CheckpointOps
    folder: Path
    save_steps: int | None
    save_secs: float | None
    keep: int | None
    seed: int
    fingerprint: str
    run_id: Callable[[], str | None]
    check_finite: frozenset[str] = frozenset()
    on_written: Callable[[Path], None] | None = None
    global_batch: int = 0
    numbering: str = ""
    data: Mapping[str, str] = field(default_factory=dict)
    ask_epoch: Callable[[int], Callable[[], Mapping[str, Any] | None]] = lambda _: lambda: None
    copy_bytes: int | None = None
    keep_bytes: int | None = None
    last_step: int = -1
    last_time_secs: float = 0.0
    last_prefix: Path | None = None
    _writing: Future[tuple[Path, float]] | None = None
    _warming: threading.Thread | None = None
    _waited_secs: float = 0.0
    _validated: set[int] = field(default_factory=set)

    def start(self, step: int) -> None:
        """Starts counting steps at `step`, and removes the leftovers of a run that was killed while saving.

        Raises CheckpointError if the folder is not writable.
        """
        for note in checkpoint_folder.prepare(self.folder):
            log.warning("%s", note)
        best_checkpoint.forget_later(self.folder, step)
        self._count_from(step)

    def warm_up(self, session: tf.Session) -> None:
        """Reads all variables once, in a thread.

        TensorFlow prepares ops when they first run, and the preparation takes longer than the ops themselves. This call
        spares the first `save` that preparation. If other ranks would have to take part, only own rows are prepared.
        """
        self._warming = threading.Thread(target=self._read_and_forget, args=(session,), name="warm up", daemon=True)
        self._warming.start()

    def go_on_with(self, ops: CheckpointOps, session: tf.Session) -> None:
        """Switches to `ops` after the variables have been divided into different pieces. Call `rest` before the
        division changes."""
        self.ops = ops
        for of_ops in ("_writer", "_joint"):
            self.__dict__.pop(of_ops, None)
        self.warm_up(session)

    def rest(self) -> None:
        """Waits until no thread is reading the variables. Raises CheckpointError if a checkpoint could not be
        written."""
        self._wait_until_warm()
        self._settle()

    def is_due(self, step: int, passed: int = 1) -> bool:
        """Returns whether a checkpoint is due after `step` steps. `passed` is the number of steps since the last
        call."""
        by_steps = self.save_steps is not None and step % self.save_steps < passed
        by_secs = self.save_secs is not None and time.monotonic() - self.last_time_secs >= self.save_secs
        return step > self.last_step and (by_steps or by_secs)

    def save(self, session: tf.Session, *, step: int, examples: int) -> None:
        """Waits until the variables have been read. A thread then writes them.

        If the previous checkpoint is still being written, waits for it first. Raises CheckpointError if the previous
        checkpoint could not be written.
        """
        started = time.perf_counter()
        self._settle()
        self._wait_until_warm()
        try:
            written = checkpoint_folder.begin(self.folder, step)
        except OSError as error:
            raise self._failure(step, error.strerror or str(error)) from error
        # The state of the epoch is asked for now, because this rank's next report may include later steps.
        save = _Save(session, written, step, examples, self.ask_epoch(step))
        self._writing = save.done
        threading.Thread(target=self._write, args=(save,), name="checkpoint", daemon=True).start()
        step_read = self._wait_until_read(save)
        self._waited_secs = time.perf_counter() - started
        self._count_from(step if step_read is None else step_read)

    def raise_if_failed(self) -> None:
        """Raises CheckpointError if a checkpoint could not be written. Does not wait for a checkpoint that is still
        being written."""
        if self._writing is not None and self._writing.done():
            self._settle()

    def save_last(self, session: tf.Session, *, step: int, examples: int) -> None:
        """Saves the last step unless this run has already saved it. Does not wait until the checkpoint is written."""
        if step != self.last_step or (self.last_prefix is None and self._writing is None):
            self.save(session, step=step, examples=examples)

    def finish(self, session: tf.Session, *, step: int, examples: int) -> Path | None:
        """Calls `save_last`, waits until the checkpoint is written, and returns the prefix of the last checkpoint."""
        self.save_last(session, step=step, examples=examples)
        self._settle()
        return self.last_prefix

    def close(self) -> None:
        """When a run fails for another reason, waits for the checkpoint that is being written.

        The wait is limited, since the variables of a dead server never arrive.
        """
        if self._writing is not None:
            with contextlib.suppress(TimeoutError):
                self._writing.exception(CLOSE_SECS)

    def validated(self, step: int) -> None:
        """Keeps the checkpoint of `step` until the driver has recorded its validation result."""
        self._validated.add(step)

    def _count_from(self, step: int) -> None:
        self.last_step, self.last_time_secs = step, time.monotonic()

    def _read_and_forget(self, session: tf.Session) -> None:
        # A failed read fails again in `save`, which reports the failure.
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            self.ops.warm_up(session)

    def _wait_until_warm(self) -> None:
        if self._warming is not None:
            self._warming.join()
            self._warming = None

    def _settle(self) -> None:
        """Waits for the checkpoint that is being written. If writing failed, each call raises the error."""
        if self._writing is None:
            return
        self.last_prefix, secs = self._writing.result()
        self._writing = None
        waited_ms = 1000 * self._waited_secs
        # This line is written only to the log. In a script's worker, `sys.stdout` would also go to the user's terminal.
        told = f"checkpoint of step {self.last_step}: written in {secs:.2f} s; training waited {waited_ms:.0f} ms"
        print(told, file=sys.__stdout__, flush=True)

    def _wait_until_read(self, save: _Save) -> int | None:
        """Waits until steps may run again. Returns the number of steps that led to the values, or None."""
        if self._joint is None:
            return self.ops.wait_until_read(save.session)
        save.copied.wait()
        return None

    def _write(self, save: _Save) -> None:
        """Writes the checkpoint. Runs in the checkpoint thread, and sets the result of `save.done`: the new prefix and
        the duration in seconds, or the error."""
        started = time.perf_counter()
        try:
            prefix = self._write_alone(save) if self._joint is None else self._write_jointly(save, self._joint)
        except BaseException as error:
            shutil.rmtree(save.written.parent, ignore_errors=True)
            save.done.set_exception(error)
        else:
            save.done.set_result((prefix, time.perf_counter() - started))
        finally:
            save.copied.set()

    def _write_alone(self, save: _Save) -> Path:
        values, step_read = self._read(save.session, save.step)
        step, examples = save.step, save.examples
        if step_read is not None:
            step, examples = step_read, examples + (step_read - step) * self.global_batch
        self._check_finite(step, not_finite(self.ops.slices, values, self.check_finite))
        with self._disk_errors(step):
            self._writer.write(save.written, values)
            checkpoint_folder.flush(save.written)
            self._writer.read_back(save.written)
            found = Written(block_rows=self._writer.block_rows)
            return self._publish(save, step=step, examples=examples, found=found)

    def _write_jointly(self, save: _Save, joint: JointSave) -> Path:
        try:
            found = joint.write(save.session, save.written, save.copied.set)
        except (RankLost, tf.errors.OpError) as error:
            reason = _reason(error) if isinstance(error, tf.errors.OpError) else str(error)
            raise self._failure(save.step, f"the variables could not be read: {reason}") from error
        self._check_finite(save.step, found.not_finite)
        if found.error is not None:
            raise self._failure(save.step, found.error)
        with self._disk_errors(save.step):
            checkpoint_folder.flush(save.written)
            return self._publish(save, step=save.step, examples=save.examples, found=found)

    def _read(self, session: tf.Session, step: int) -> tuple[list[np.ndarray], int | None]:
        try:
            return self.ops.read_with_step(session)
        except BaseException as error:
            with contextlib.suppress(tf.errors.OpError, RuntimeError):
                self.ops.give_up(session)
            if isinstance(error, tf.errors.OpError):
                raise self._failure(step, f"the variables could not be read: {_reason(error)}") from error
            raise

    def _check_finite(self, step: int, name: str | None) -> None:
        """Raises CheckpointError if there is a variable `name` with NaN or infinite values."""
        if name is not None:
            raise CheckpointError(
                f"checkpoint of step {step} was not written, because «{name}» contains NaN or infinite values. "
                f"{self._last_good()}"
            )

    @contextlib.contextmanager
    def _disk_errors(self, step: int) -> Iterator[None]:
        """Raises CheckpointError if files cannot be written or read."""
        try:
            yield
        except OSError as error:
            raise self._failure(step, error.strerror or str(error)) from error
        except tf.errors.OpError as error:
            raise self._failure(step, _reason(error)) from error

    def _publish(self, save: _Save, *, step: int, examples: int, found: Written) -> Path:
        sidecar = Sidecar(
            step=step,
            examples=examples,
            seed=self.seed,
            fingerprint=self.fingerprint,
            tracker_run_id=self.run_id(),
            numbering=self.numbering,
            data=self.data,
            epoch=save.epoch_state(),
            block_rows=found.block_rows,
        )
        prefix = checkpoint_folder.publish(save.written, self.folder, sidecar, found.files)
        if self.on_written is not None:
            self.on_written(prefix)
        spare = best_checkpoint.not_to_forget(self.folder, set(self._validated)) | {step}
        checkpoint_folder.forget_old(self.folder, self.keep, spare, keep_bytes=self.keep_bytes)
        self._tell_tensorflow(prefix)
        return prefix

    def _tell_tensorflow(self, prefix: Path) -> None:
        """Writes the file that `tf.train.latest_checkpoint` and `load_checkpoint` read to find the newest checkpoint.
        Nothing else needs this file."""
        try:
            kept = [path.name for path in checkpoint_files.readable(self.folder)]
            with literal(prefix) as path:
                folder = str(Path(path).parent)
                tf.train.update_checkpoint_state(folder, prefix.name, all_model_checkpoint_paths=kept)
        except (OSError, tf.errors.OpError) as error:
            log.warning("%s cannot be written: %s", self.folder / "checkpoint", error)

    @functools.cached_property
    def _joint(self) -> JointSave | None:
        return None if self.ops.own_rows is None else JointSave(self.ops, self.check_finite, self.copy_bytes)

    @functools.cached_property
    def _writer(self) -> CheckpointWriter:
        return CheckpointWriter(self.ops.slices, self.ops.block_bytes)

    def _failure(self, step: int, reason: str) -> CheckpointError:
        return CheckpointError(
            f"checkpoint of step {step} could not be written to {self.folder}: {reason}. {self._last_good()}"
        )

    def _last_good(self) -> str:
        found = list(checkpoint_files.readable(self.folder))
        return f"The last good checkpoint is {found[-1]}" if found else "There is no earlier checkpoint"


def _reason(error: tf.errors.OpError) -> str:
    """Returns the operating system's message, which follows the file name and a semicolon in TensorFlow's message."""
    return reason_in(str(error.message)).rpartition("; ")[2]
