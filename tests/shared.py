"""Results that tests in several processes share: the first that asks makes the result, and the others wait for it."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

Made = TypeVar("Made")


def common_folder(folders: pytest.TempPathFactory) -> Path:
    """Returns the folder of this session's temporary files, the same for all xdist workers."""
    own = folders.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def shared(folders: pytest.TempPathFactory, name: str, make: Callable[[Path], Made]) -> Made:
    """Returns the result of `make` for an empty folder of this name; `make` is called once per session, whichever
    process asks first.

    If `make` raises an exception, this function raises AssertionError with its text in each process that asks.
    """
    base = common_folder(folders)
    result = base / f"{name}.made"
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            (base / name).mkdir()
            result.write_bytes(pickle.dumps(_outcome(make, base / name)))
    made, failure = pickle.loads(result.read_bytes())
    if failure is not None:
        raise AssertionError(failure)
    return made


def _outcome(make: Callable[[Path], Made], folder: Path) -> tuple[Made | None, str | None]:
    try:
        return make(folder), None
    except Exception as error:
        return None, str(error) if isinstance(error, AssertionError) else repr(error)
