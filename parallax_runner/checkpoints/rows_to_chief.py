"""Sends the rows of the other ranks to the chief for its checkpoints, if variables are sharded across the ranks."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps


@dataclass
class RowsToChief:
    """Sends this rank's own rows to the chief. The rank calls each method at the point in the loop where the chief
    calls the same method of its `CheckpointSaver`."""

    ops: CheckpointOps
    last_step: int = -1
    last_prefix: None = None
    _handed_over: bool = False
    _handing: threading.Thread | None = None

    def start(self, step: int) -> None:
        """Records `step` as the last saved step."""
        self.last_step = step

    def warm_up(self, session: tf.Session) -> None:
        """Does nothing: the chief does not read other ranks' rows before it needs them."""

    def is_due(self, step: int, passed: int = 1) -> bool:
        """Returns False: the chief decides, and all ranks receive its vote."""
        return False

    def save(self, session: tf.Session, *, step: int, examples: int) -> None:
        """Waits until this rank's rows have been read. A thread then sends them."""
        if self._handing is not None:
            self._handing.join()
        self._handing = threading.Thread(target=self._hand_over, args=(session,), name="checkpoint", daemon=True)
        self._handing.start()
        self.ops.wait_until_read(session)
        self.last_step, self._handed_over = step, True

    def raise_if_failed(self) -> None:
        """Does nothing: the chief writes the checkpoints and reports failures."""

    def save_last(self, session: tf.Session, *, step: int, examples: int) -> None:
        """Sends the rows of the last step, unless this run has already sent them."""
        if step != self.last_step or not self._handed_over:
            self.save(session, step=step, examples=examples)

    def finish(self, session: tf.Session, *, step: int, examples: int) -> None:
        """Does the same as `save_last`, and waits until the chief has the rows."""
        self.save_last(session, step=step, examples=examples)
        self.close()

    def close(self) -> None:
        """Waits until the chief has the rows."""
        if self._handing is not None:
            self._handing.join()

    def validated(self, step: int) -> None:
        """Does nothing: the chief keeps the validated checkpoint."""

    def _hand_over(self, session: tf.Session) -> None:
        try:
            self.ops.read(session)
        except (tf.errors.OpError, RuntimeError):
            # Another rank has died. The process of that rank reports the failure.
            with contextlib.suppress(tf.errors.OpError, RuntimeError):
                self.ops.give_up(session)
