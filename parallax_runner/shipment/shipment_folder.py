"""The folder of a shipment, in the run's folder. It exists only while the run's processes do."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from parallax_runner.checkpoints.origin import FOLDER as SOURCE
from parallax_runner.config import frozen
from parallax_runner.errors import StorageError
from parallax_runner.files.plain import read_object, reason_of, remove
from parallax_runner.files.whole import write_whole
from parallax_runner.plan.format_bytes import format_bytes

FOLDER = "shipment"
CONTENTS = "contents.json"
DATA = "data"
OWNER_ONLY = 0o700


@dataclass(frozen=True)
class Contents:
    """Which parts of a run are in its shipment.

    `graph` and `data` are the reasons why a part is not in it, or None if it is. `data_folder` is the folder of the
    data, which can be on another disk than the run. `pass_steps` and `pass_examples` are the numbers of batches and
    examples in a pass over a `tf.data.Dataset` that is not in the shipment. All workers must agree on them, so only the
    driver counts. `whole_only` says whether the driver has chosen to omit partial batches.
    """

    graph: str | None
    data: str | None
    data_folder: str
    pass_steps: int | None = None
    pass_examples: int | None = None
    whole_only: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether a worker needs neither the user's script nor the user's functions."""
        return self.graph is None and self.data is None

    def save(self, run_dir: Path) -> None:
        """Writes the contents for the workers."""
        write_whole(folder_of(run_dir) / CONTENTS, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, run_dir: Path) -> Contents | None:
        """Reads what `save` wrote, or returns None if the run has no shipment.

        Raises OSError or ValueError if the file cannot be read.
        """
        path = folder_of(run_dir) / CONTENTS
        return cls(**read_object(path)[1]) if path.exists() else None


def folder_of(run_dir: Path) -> Path:
    """Returns the folder of a run's shipment."""
    return run_dir / FOLDER


def needs_script(run_dir: Path) -> bool:
    """Returns whether the workers of a run must run the user's script."""
    target = frozen.load(run_dir).model["_target_"]
    if target == frozen.SCRIPT:
        return True
    contents = Contents.load(run_dir)
    return target == frozen.FIT and (contents is None or not contents.is_complete)


def make_empty(folder: Path) -> Path:
    """Makes an empty folder that only this user can read, in place of an older one. Returns `folder`."""
    remove(folder)
    folder.mkdir(parents=True, mode=OWNER_ONLY)
    return folder


@contextmanager
def removed_at_end(run_dir: Path) -> Iterator[None]:
    """Removes the run's shipment after the `with` block, in which it is written and the run's processes end, and the
    checkpoint that was made from a file of Keras. If a folder cannot be removed, prints a note, because the result of
    the run does not depend on it."""
    try:
        yield
    finally:
        for folder in (folder_of(run_dir), run_dir / SOURCE):
            _remove_or_tell(folder)


def _remove_or_tell(folder: Path) -> None:
    try:
        remove(folder)
    except OSError as error:
        print(
            f"parallax_runner: {folder}: the files for the workers cannot be removed: {reason_of(error)}; no run needs "
            "them any more, so remove this folder",
            file=sys.stderr,
        )


def check_space(folder: Path, needed_bytes: int, what: str, remedy: str) -> None:
    """Raises StorageError if the disk of `folder` has less than `needed_bytes` of free space. `what` names what would
    be written, and `remedy` says how the user can provide more space."""
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise StorageError(
            f"{folder}: {what} needs {format_bytes(needed_bytes)} while the run lasts, but the disk has only "
            f"{format_bytes(free_bytes)} of free space: {remedy}"
        )
