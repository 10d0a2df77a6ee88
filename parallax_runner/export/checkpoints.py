"""Chooses which of a run's checkpoints become artifacts (`tracking.log_checkpoints`), and keeps these checkpoints until
they are sent."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from parallax_runner.checkpoints.best import best_checkpoint
from parallax_runner.checkpoints.checkpoint_files import (
    Sidecar,
    damage,
    files_of,
    newest_write_number,
    read_sidecar,
    readable,
    sidecar_path,
)
from parallax_runner.errors import CheckpointError
from parallax_runner.files.link_or_copy import link_or_copy
from parallax_runner.files.plain import remove

log = logging.getLogger(__name__)

OUTBOX = ".outbox"


class CheckpointArtifacts:
    """Chooses among the checkpoints that appear in `ckpt_dir` after this object was created. Create it before the
    launch.

    `which` is `last`, `best`, `all` or `none`. `send` is called with a folder in `run_dir` that contains one complete
    checkpoint. The folder exists until the sender removes it, even if the original checkpoint is deleted.
    """

    def __init__(self, which: str, ckpt_dir: Path, run_dir: Path, send: Callable[[Path], None]) -> None:
        self._which, self._ckpt_dir, self._outbox, self._send = which, ckpt_dir, run_dir / OUTBOX, send
        self._old = newest_write_number(ckpt_dir)
        self._sent: dict[Path, Sidecar] = {}

    def on_checkpoint(self, prefix: Path) -> None:
        """Handles a new checkpoint. If `which` is `all`, sends the checkpoint before it can be deleted."""
        if self._which == "all":
            self._give(prefix)

    def close(self) -> None:
        """Sends the checkpoints that are chosen at the end, no matter how the run ended."""
        if self._which == "all":
            for prefix in self._new():
                self._give(prefix)
        elif self._which == "last":
            self._give_last()
        elif self._which == "best":
            best = self._best()
            if best is None:
                self._give_last()
            else:
                self._give(best)

    def _new(self) -> list[Path]:
        found = readable(self._ckpt_dir)
        return [prefix for prefix, sidecar in found.items() if sidecar.write_number > self._old]

    def _best(self) -> Path | None:
        best = best_checkpoint(self._ckpt_dir)
        return best if best is not None and damage(best) is None else None

    def _give_last(self) -> None:
        whole = (prefix for prefix in reversed(self._new()) if damage(prefix) is None)
        newest = next(whole, None)
        if newest is not None:
            self._give(newest)

    def _give(self, prefix: Path) -> None:
        try:
            held = self._outbox / prefix.name
            # The checkpoint's writer may already have put the checkpoint into the outbox, and may then have deleted the
            # original.
            sidecar = read_sidecar(prefix if os.path.lexists(sidecar_path(prefix)) else held / prefix.name)
            if self._sent.get(prefix) == sidecar:
                return
            if not _holds(held, sidecar):
                hold(prefix, self._outbox)
        except (OSError, CheckpointError) as error:
            log.warning("checkpoint %s was not logged as an artifact: %s", prefix, error)
            return
        self._sent[prefix] = sidecar
        self._send(held)


def hold(prefix: Path, outbox: Path) -> Path:
    """Links or copies the files of a checkpoint into a separate folder in `outbox`, and returns the folder.

    TensorFlow (`latest_checkpoint`) and `ckpt.resume` can find the checkpoint in this folder.
    """
    partial, folder = outbox / f".{prefix.name}", outbox / prefix.name
    remove(partial)
    partial.mkdir(parents=True)
    for file in [*files_of(prefix), sidecar_path(prefix)]:
        link_or_copy(file, partial / file.name)
    state = f'model_checkpoint_path: "{prefix.name}"\nall_model_checkpoint_paths: "{prefix.name}"\n'
    (partial / "checkpoint").write_text(state, encoding="utf-8")
    remove(folder)
    return partial.rename(folder)


def _holds(folder: Path, sidecar: Sidecar) -> bool:
    try:
        return read_sidecar(folder / folder.name) == sidecar
    except CheckpointError:
        return False
