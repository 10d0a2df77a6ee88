"""Writes a checkpoint by all ranks together, if variables are spread over the ranks.

The ranks exchange their rows so that each has blocks of consecutive rows (row_blocks.py). Each rank writes its blocks
to parts in the chief's folder. The chief writes everything else to one more part, and merges the parts. Then each rank
reads back its blocks from the merged checkpoint, and computes the checksums of its files.

No rank holds whole variables. A rank copies some of its own rows before training goes on, and sends the others while
training waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import FileState
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.joint_files import JointFiles, RankFailed, Trouble
from parallax_runner.checkpoints.own_rows import OwnRows
from parallax_runner.checkpoints.part_files import PartFiles, SliceReader
from parallax_runner.checkpoints.rank_exchange import RankExchange
from parallax_runner.checkpoints.row_blocks import (
    Block,
    Round,
    brought_together,
    messages,
    own_ranges,
    rounds,
)
from parallax_runner.checkpoints.save_sizes import SaveSizes
from parallax_runner.checkpoints.slices import Slice
from parallax_runner.checkpoints.writer import CheckpointWriter, not_finite

KEPT_PART = "part-kept"


@dataclass(frozen=True)
class Written:
    """The result of writing a checkpoint together.

    `files` has the states of the files with values, by the endings of their names. `block_rows` has the same meaning as
    in a sidecar. `not_finite` is the name of a variable that contains NaN or infinite values, or None. `error` is the
    reason why a rank could not write, or None.
    """

    files: Mapping[str, FileState] = field(default_factory=dict)
    block_rows: Mapping[str, int] = field(default_factory=dict)
    not_finite: str | None = None
    error: str | None = None


class JointSave:
    """One rank's part in writing checkpoints. Create this object at the same time on all ranks.

    Own rows of at most `copy_bytes` bytes are copied before training goes on, and parts have at least `part_bytes`
    bytes. If one of them is None, it has the value in `SaveSizes`.
    """

    def __init__(
        self,
        ops: CheckpointOps,
        check_finite: frozenset[str],
        copy_bytes: int | None = None,
        *,
        part_bytes: int | None = None,
    ) -> None:
        assert ops.own_rows is not None
        self._ops, self._own_rows, self._check_finite = ops, ops.own_rows, check_finite
        self._rank, self._ranks = ops.rank, ops.own_rows.ranks
        sizes = SaveSizes.of(self._own_rows.sizes_bytes, ops.block_bytes)
        self._block_bytes = sizes.block_bytes
        self._part_bytes = sizes.part_bytes if part_bytes is None else part_bytes
        self._copy_bytes = sizes.copy_bytes if copy_bytes is None else copy_bytes

    def write(self, session: tf.Session, prefix: Path, on_copied: Callable[[], None]) -> Written:
        """Writes the checkpoint `prefix`, in whose folder the parts are. Calls `on_copied` when steps may run again.

        Raises RankLost if another rank no longer takes part, and tf.errors.OpError if the variables cannot be read.
        """
        try:
            return self._write(session, prefix, on_copied)
        except RankFailed as failed:
            return Written(not_finite=failed.trouble.not_finite, error=failed.trouble.error)

    def _write(self, session: tf.Session, prefix: Path, on_copied: Callable[[], None]) -> Written:
        trouble = Trouble()
        work = rounds(self._own_rows.variables, self._joint.writers(prefix.parent), self._block_bytes)
        part_files = PartFiles(prefix.parent, f"part-{self._rank:05d}", self._part_bytes)
        kept = self._ops.read_kept(session)
        self._send_all(session, work, part_files, trouble, on_copied)
        parts = self._finish_parts(prefix.parent, part_files, kept, trouble)
        files = self._joint.merged(prefix, parts, trouble, functools.partial(self._read_back, prefix, work))
        return Written(files, self._own_rows.block_rows(self._block_bytes))

    @functools.cached_property
    def _joint(self) -> JointFiles:
        return JointFiles(RankExchange(self._ranks), self._rank)

    @functools.cached_property
    def _reader(self) -> SliceReader:
        return SliceReader()

    @functools.cached_property
    def _kept_writer(self) -> CheckpointWriter:
        return CheckpointWriter(self._ops.kept_slices)

    def _send_all(
        self,
        session: tf.Session,
        work: Sequence[Round],
        files: PartFiles,
        trouble: Trouble,
        on_copied: Callable[[], None],
    ) -> None:
        """Sends the rows of all rounds. Calls `on_copied` as soon as the remaining rows have been copied."""
        copied = _last_that_fit(self._own_bytes(work), self._copy_bytes)
        first_copied = len(work) - copied
        for of_round in work[:first_copied]:
            self._send(of_round, self._own(session, of_round), files, trouble)
        copies = [self._own(session, of_round) for of_round in work[first_copied:]]
        on_copied()
        for number, of_round in enumerate(work[first_copied:]):
            own, copies[number] = copies[number], {}
            self._send(of_round, own, files, trouble)

    def _own_bytes(self, work: Sequence[Round]) -> list[int]:
        """Returns how many bytes this rank sends in each round."""
        variables = self._own_rows.variables
        return [
            sum(len(places) * variables[number].row_bytes for number, places in self._ranges(of_round).items())
            for of_round in work
        ]

    def _ranges(self, of_round: Round) -> dict[int, range]:
        return own_ranges(of_round, self._rank, self._ranks)

    def _own(self, session: tf.Session, of_round: Round) -> dict[int, np.ndarray]:
        return self._own_rows.read(session, self._ranges(of_round))

    def _send(self, of_round: Round, own: dict[int, np.ndarray], files: PartFiles, trouble: Trouble) -> None:
        came = self._joint.exchange.swap(messages(of_round, own, self._rank, self._ranks))
        own.clear()
        for block, rows in brought_together(of_round, self._own_rows.variables, came, self._rank):
            trouble.attempt(functools.partial(self._add, block, rows, files, trouble))

    def _add(self, block: Block, rows: np.ndarray, files: PartFiles, trouble: Trouble) -> None:
        part, value = _slice_of(self._own_rows, block), self._own_rows.values_of(block.variable, rows)
        trouble.not_finite = not_finite([part], [value], self._check_finite)
        if trouble.not_finite is None:
            files.add(part, value)

    def _finish_parts(self, folder: Path, files: PartFiles, kept: Sequence[np.ndarray], trouble: Trouble) -> list[str]:
        """Returns the names of this rank's parts."""
        trouble.attempt(files.flush)
        if not (self._ops.is_chief and self._ops.kept_slices):
            return [part.name for part in files.parts]
        trouble.attempt(lambda: self._write_kept(folder, kept, trouble))
        return [KEPT_PART, *(part.name for part in files.parts)]

    def _write_kept(self, folder: Path, kept: Sequence[np.ndarray], trouble: Trouble) -> None:
        trouble.not_finite = not_finite(self._ops.kept_slices, kept, self._check_finite)
        if trouble.not_finite is None:
            self._kept_writer.write(folder / KEPT_PART, kept)

    def _read_back(self, prefix: Path, work: Sequence[Round]) -> None:
        """Reads everything that this rank has written. Raises tf.errors.OpError if something cannot be read."""
        for block in (block for of_round in work for block in of_round if block.writer == self._rank):
            self._reader.read(prefix, _slice_of(self._own_rows, block))
        if self._ops.is_chief:
            self._kept_writer.read_back(prefix)


def _slice_of(own_rows: OwnRows, block: Block) -> Slice:
    return own_rows.slices[block.variable].rows(block.first, block.rows)


def _last_that_fit(sizes_bytes: Sequence[int], most_bytes: int) -> int:
    """Returns how many of the last sizes have a sum of at most `most_bytes`."""
    total_bytes = 0
    for count, size_bytes in enumerate(reversed(sizes_bytes)):
        total_bytes += size_bytes
        if total_bytes > most_bytes:
            return count
    return len(sizes_bytes)
