"""Prevents a second driver from using a run directory or a checkpoint folder that is in use."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from parallax_runner.config.actions import action_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import ConfigError, Setting
from parallax_runner.files.locks import locked

log = logging.getLogger(__name__)

# A lock on a file, unlike a lock on a folder, also holds for other hosts that see the folder over NFS.
CHECKPOINT_LOCK = ".lock"


@contextmanager
def alone_in(run_dir: Path) -> Iterator[None]:
    """Creates the directory and locks it. The kernel unlocks the directory when the process ends, however it ends.

    Raises ConfigError if another process has locked the directory. In that case, nothing is written to the directory.
    Raises OSError if the directory cannot be created.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError("another run uses this directory").about(
                Setting.of("run_dir", run_dir), remedy="wait until that run ends, or set hydra.run.dir=ANOTHER"
            ) from error
        except OSError as error:  # Some network file systems cannot lock folders.
            log.warning("%s cannot be locked: %s", run_dir, error)
        yield
    finally:
        os.close(folder)


@contextmanager
def alone_in_checkpoints(config: RunConfig) -> Iterator[None]:
    """Creates and locks the checkpoint folder of a run that trains. Does nothing for other runs.

    Two runs in one folder would remove each other's unfinished checkpoints and count each other's checkpoints as their
    own. Raises ConfigError if another run has locked the folder. If the folder cannot be created or locked, only logs
    a warning: the chief reports a folder that is not writable.
    """
    if not action_of(config).trains or not config.ckpt.enabled:
        yield
        return
    folder = Path(config.ckpt.folder)
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / CHECKPOINT_LOCK, wait=False))
        except BlockingIOError as error:
            raise ConfigError("another run writes its checkpoints to this folder").about(
                Setting.of("ckpt.dir", folder), remedy="wait until that run ends, or set ckpt.dir=ANOTHER"
            ) from error
        except OSError as error:  # some network file systems have no locks
            log.warning("%s cannot be locked: %s", folder, error)
        yield
