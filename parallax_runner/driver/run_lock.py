"""Prevents a second driver from using a run directory that is in use."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parallax_runner.errors import ConfigError

log = logging.getLogger(__name__)


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
            raise ConfigError(
                f"run_dir={run_dir}: another run uses this directory; wait until that run ends, or set "
                "hydra.run.dir=ANOTHER"
            ) from error
        except OSError as error:  # Some network file systems cannot lock folders.
            log.warning("%s cannot be locked: %s", run_dir, error)
        yield
    finally:
        os.close(folder)
