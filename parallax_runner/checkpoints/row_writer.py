"""A rank's part in saving checkpoints, if the rank is not the chief and variables are spread over the ranks."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from pathlib import Path

import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.joint_save import JointSave
from parallax_runner.checkpoints.publish import partial_prefix
from parallax_runner.checkpoints.rank_exchange import RankLost


@dataclass
class RowWriter:
    """Writes this rank's part of each checkpoint to the chief's folder. The rank calls each method at the point in the
    loop where the chief calls the same method of its `CheckpointSaver`. The fields have the same meaning as there."""

    ops: CheckpointOps
    folder: Path
    check_finite: frozenset[str] = frozenset()
    copy_bytes: int | None = None
    last_step: int = -1
    last_prefix: None = None
    _has_saved: bool = False
    _failure: tf.errors.OpError | None = None
    _writing: threading.Thread | None = None
    _copied: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._joint = JointSave(self.ops, self.check_finite, self.copy_bytes)

    def start(self, step: int) -> None:
        """Records `step` as the last saved step."""
        self.last_step = step

    def warm_up(self, session: tf.Session) -> None:
        """Runs the ops that read own rows once, in a thread."""
        self._writing = threading.Thread(target=self._prepare, args=(session,), name="warm up", daemon=True)
        self._writing.start()

    def go_on_with(self, ops: CheckpointOps, session: tf.Session) -> None:
        """Switches to `ops` after variables on servers have been divided into different pieces. Call `rest` before the
        division changes."""
        self.ops = ops
        self._joint = JointSave(ops, self.check_finite, self.copy_bytes)
        self.warm_up(session)

    def is_due(self, step: int, passed: int = 1) -> bool:
        """Returns False: the chief decides, and all ranks receive its vote."""
        return False

    def save(self, session: tf.Session, *, step: int, examples: int) -> None:
        """Waits until steps may run again. A thread then writes the remaining rows."""
        self.close()
        self._copied.clear()
        prefix = partial_prefix(self.folder, step)
        self._writing = threading.Thread(target=self._write, args=(session, prefix), name="checkpoint", daemon=True)
        self._writing.start()
        self._copied.wait()
        self.last_step, self._has_saved = step, True

    def raise_if_failed(self) -> None:
        """Raises tf.errors.OpError if this rank's rows could not be read. The chief reports all other failures."""
        if self._failure is not None:
            raise self._failure

    def save_last(self, session: tf.Session, *, step: int, examples: int) -> None:
        """Saves the last step, unless this run has already saved it."""
        if step != self.last_step or not self._has_saved:
            self.save(session, step=step, examples=examples)

    def finish(self, session: tf.Session, *, step: int, examples: int) -> None:
        """Does the same as `save_last`, and waits until this rank's part is written."""
        self.save_last(session, step=step, examples=examples)
        self.rest()

    def close(self) -> None:
        """Waits until this rank's part is written."""
        if self._writing is not None:
            self._writing.join()

    def rest(self) -> None:
        """Waits until this rank's part is written. Raises tf.errors.OpError if this rank's rows could not be read."""
        self.close()
        self.raise_if_failed()

    def validated(self, step: int) -> None:
        """Does nothing: the chief keeps the validated checkpoint."""

    def _prepare(self, session: tf.Session) -> None:
        # A failed read fails again in `save`, which reports the failure.
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            self.ops.warm_up(session)

    def _write(self, session: tf.Session, prefix: Path) -> None:
        try:
            # If another rank has died, the process of that rank reports the failure.
            with contextlib.suppress(RankLost, RuntimeError):
                self._joint.write(session, prefix, self._copied.set)
        except tf.errors.OpError as error:
            self._failure = error
        finally:
            self._copied.set()
