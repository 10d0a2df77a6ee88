"""Writes files together with the other ranks: who can write, what went wrong, and how parts become one checkpoint."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import FileState, state_of
from parallax_runner.checkpoints.part_files import data_ending, merge
from parallax_runner.checkpoints.publish import flush_file
from parallax_runner.checkpoints.rank_exchange import Exchange
from parallax_runner.errors import reason_in


@dataclass
class Trouble:
    """What went wrong on this rank: a variable that is not finite, or the reason why this rank could not write. The
    rank goes on taking part in the exchanges, since other ranks would wait for it."""

    not_finite: str | None = None
    error: str | None = None

    def attempt(self, work: Callable[[], None]) -> None:
        """Calls `work`, unless something has gone wrong before."""
        if self.error is not None or self.not_finite is not None:
            return
        try:
            work()
        except OSError as error:
            self.error = error.strerror or str(error)
        except tf.errors.OpError as error:
            self.error = reason_in(str(error.message)).rpartition("; ")[2]


class RankFailed(Exception):
    """A rank has had the trouble `trouble`."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.error or trouble.not_finite)
        self.trouble = trouble


class JointFiles:
    """One rank's part in writing files to the chief's folder. All ranks must make the same calls in the same order."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self.exchange, self.rank = exchange, rank

    def writers(self, folder: Path) -> list[int]:
        """Returns the ranks that can write to the chief's folder: the other ranks may be on hosts that have another
        folder at this path."""
        is_chief = self.rank == 0
        token = uuid.uuid4().hex if is_chief else ""
        if is_chief:
            (folder / token).touch()
        token = self.exchange.tell({"token": token})[0]["token"]
        sees = self.exchange.tell({"sees": (folder / token).exists()})
        if is_chief:
            (folder / token).unlink()
        return [rank for rank, one in enumerate(sees) if one["sees"]]

    def tell(self, trouble: Trouble, **fields: Any) -> list[dict[str, Any]]:
        """Sends the fields to all ranks, and returns those of all ranks. Raises RankFailed if a rank has trouble."""
        told = self.exchange.tell({**dataclasses.asdict(trouble), **fields})
        for one in told:
            if one["error"] is not None or one["not_finite"] is not None:
                raise RankFailed(Trouble(one["not_finite"], one["error"]))
        return told

    def merged(
        self, prefix: Path, parts: Sequence[str], trouble: Trouble, read_back: Callable[[], None]
    ) -> dict[str, FileState]:
        """Merges the parts of all ranks into the checkpoint `prefix`, flushes its files to disk, and calls `read_back`
        on each rank, which reads what it has written. Returns the states of the files with values, by the endings of
        their names. `parts` are the names of this rank's parts. Raises RankFailed if a rank has trouble."""
        names = [name for one in self.tell(trouble, parts=list(parts)) for name in one["parts"]]
        if self.rank == 0:
            trouble.attempt(lambda: merge([prefix.with_name(name) for name in names], prefix))
        self.tell(trouble)
        own: dict[str, FileState] = {}
        trouble.attempt(lambda: own.update(_verified(prefix, parts, names, read_back)))
        told = self.tell(trouble, files={ending: dataclasses.asdict(state) for ending, state in own.items()})
        return {ending: FileState(**state) for one in told for ending, state in one["files"].items()}


def _verified(
    prefix: Path, parts: Sequence[str], names: Sequence[str], read_back: Callable[[], None]
) -> dict[str, FileState]:
    """Flushes the files of this rank's parts to disk. Returns their states. Raises OSError or tf.errors.OpError if
    something cannot be read."""
    endings = [data_ending(names.index(part), len(names)) for part in parts]
    files = {ending: prefix.with_name(f"{prefix.name}.{ending}") for ending in endings}
    for file in files.values():
        flush_file(file)
    read_back()
    return {ending: state_of(file) for ending, file in files.items()}
