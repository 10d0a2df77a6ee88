"""What ranks other than the chief do for a checkpoint of variables that are spread over the ranks."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.ops import CheckpointOps


@dataclass
class CheckpointPart:
    """Hands this rank's own rows to the chief, whose `CheckpointSaver` is called at the same places of the loop."""

    ops: CheckpointOps
    last_step: int = -1
    last_prefix: None = None
    _handed_over: bool = False
    _handing: threading.Thread | None = None

    def start(self, step: int) -> None:
        """Begins to count from `step`."""
        self.last_step = step

    def warm_up(self, session: tf.Session) -> None:
        """Nothing: the chief does not read other ranks' rows before it needs them."""

    def is_due(self, step: int, passed: int = 1) -> bool:
        """Never: the chief decides, and its vote reaches all ranks."""
        return False

    def save(self, session: tf.Session, *, step: int, examples: int) -> None:
        """Takes this rank's rows as they are and returns; a thread hands them over."""
        if self._handing is not None:
            self._handing.join()
        self._handing = threading.Thread(target=self._hand_over, args=(session,), name="checkpoint", daemon=True)
        self._handing.start()
        self.ops.wait_until_read(session)
        self.last_step, self._handed_over = step, True

    def raise_if_failed(self) -> None:
        """Nothing: the chief, who writes, tells of what fails."""

    def save_last(self, session: tf.Session, *, step: int, examples: int) -> None:
        """Hands over the last step's rows, unless this run has."""
        if step != self.last_step or not self._handed_over:
            self.save(session, step=step, examples=examples)

    def finish(self, session: tf.Session, *, step: int, examples: int) -> None:
        """The same, and waits until the chief has them."""
        self.save_last(session, step=step, examples=examples)
        self.close()

    def close(self) -> None:
        """Waits until the chief has what it was given."""
        if self._handing is not None:
            self._handing.join()

    def validated(self, step: int) -> None:
        """Nothing: the chief keeps what was validated."""

    def _hand_over(self, session: tf.Session) -> None:
        try:
            self.ops.read(session)
        except (tf.errors.OpError, RuntimeError):
            # Another rank is gone, which its own process tells.
            with contextlib.suppress(tf.errors.OpError, RuntimeError):
                self.ops.give_up(session)
