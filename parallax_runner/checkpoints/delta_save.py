"""Writes a delta: what has changed since the last checkpoint, by all ranks together.

Each rank writes what it tells to parts in the chief's folder, which the chief merges. A rank that does not see this
folder sends everything to the chief.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import FileState
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.delta_layout import Chunk, Layout, Told
from parallax_runner.checkpoints.delta_ops import ChangedRows, Changes, Contents
from parallax_runner.checkpoints.delta_parts import ChunkValues, DeltaParts
from parallax_runner.checkpoints.joint_files import JointFiles, RankFailed, Trouble
from parallax_runner.checkpoints.part_files import PART_BYTES, PartFiles, SliceReader
from parallax_runner.checkpoints.rank_exchange import OneRank, RankExchange
from parallax_runner.checkpoints.save_sizes import SaveSizes
from parallax_runner.checkpoints.slices import Slice
from parallax_runner.checkpoints.writer import CheckpointWriter, not_finite

# The name of a delta's tensor with its step (int64 scalar), so that no delta is empty.
STEP = ":step"
WHOLE_PART = "part-whole"


@dataclass(frozen=True)
class WrittenDelta:
    """The result of writing a delta. `rows`, `elements` and `files` are as in `Delta`, and `not_finite` and `error` as
    in `Written`."""

    files: Mapping[str, FileState] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    elements: Mapping[str, int] = field(default_factory=dict)
    not_finite: str | None = None
    error: str | None = None


class DeltaSave:
    """One rank's part in writing deltas. Create this object at the same time on all ranks.

    If all that a rank tells has at most `copy_bytes` bytes, it is copied before training goes on. Otherwise, training
    waits until it is written. If `copy_bytes` is None, it has the value in `SaveSizes`, or no limit if the chief writes
    alone.
    """

    def __init__(
        self,
        ops: CheckpointOps,
        changes: Sequence[Changes],
        contents: Contents,
        check_finite: frozenset[str],
        copy_bytes: int | None = None,
    ) -> None:
        self._ops, self._changes, self._check_finite = ops, tuple(changes), check_finite
        self._by_name = {one.variable.name: one for one in changes}
        if ops.own_rows is None:
            self._ranks, sizes = 1, SaveSizes(sys.maxsize, PART_BYTES, ops.block_bytes)
        else:
            self._ranks, sizes = ops.own_rows.ranks, SaveSizes.of(ops.own_rows.sizes_bytes, ops.block_bytes)
        self._sizes = sizes
        self._copy_bytes = sizes.copy_bytes if copy_bytes is None else copy_bytes
        left_out = self._by_name.keys() | contents.slots
        self._whole = [part for part in ops.kept_slices if part.name not in left_out] if ops.is_chief else []

    def begin_again(self, session: tf.Session) -> None:
        """Forgets all changes so far. No step may run."""
        for one in self._changes:
            one.begin_again(session)

    def write(self, session: tf.Session, prefix: Path, step: int, on_copied: Callable[[], None]) -> WrittenDelta:
        """Writes the delta `prefix` of `step`, in whose folder the parts are. Calls `on_copied` when steps may run
        again.

        Raises RankLost if another rank no longer takes part, and tf.errors.OpError if the variables cannot be read.
        """
        try:
            return self._write(session, prefix, step, on_copied)
        except RankFailed as failed:
            return WrittenDelta(not_finite=failed.trouble.not_finite, error=failed.trouble.error)

    def _write(self, session: tf.Session, prefix: Path, step: int, on_copied: Callable[[], None]) -> WrittenDelta:
        trouble, rank = Trouble(), self._ops.rank
        writers = self._joint.writers(prefix.parent)
        whole = self._ops.read_kept(session, self._whole) if self._whole else []
        places = [one.find(session) for one in self._changes]
        layout = self._layout(places, trouble)
        own = _OwnChunks(session, self._changes, places, layout.chunks[rank])
        files = PartFiles(prefix.parent, f"part-{rank:05d}", self._sizes.part_bytes)
        parts = DeltaParts(files, layout, self._by_name, self._check_finite, trouble)
        self._send_all(own, layout, writers, parts, on_copied)
        trouble.attempt(files.flush)
        names = [part.name for part in files.parts]
        if self._ops.is_chief:
            trouble.attempt(lambda: self._write_whole(prefix.parent, [*whole, np.array(step, np.int64)], trouble))
            names.insert(0, WHOLE_PART)
        states = self._joint.merged(prefix, names, trouble, lambda: self._read_back(prefix, files))
        return self._told(layout, states)

    def _layout(self, places: Sequence[np.ndarray], trouble: Trouble) -> Layout:
        """Returns what all ranks tell, and where it is in the delta."""
        own = [
            (one.variable.name, len(found), one.value_bytes) for one, found in zip(self._changes, places, strict=True)
        ]
        told = [[Told(*each) for each in one["changes"]] for one in self._joint.tell(trouble, changes=own)]
        return Layout(told, self._sizes.block_bytes)

    def _send_all(
        self,
        own: _OwnChunks,
        layout: Layout,
        writers: Sequence[int],
        parts: DeltaParts,
        on_copied: Callable[[], None],
    ) -> None:
        """Writes the own chunks, or sends them to the chief, which writes them. Calls `on_copied` as soon as all own
        chunks have been read."""
        if own.size_bytes <= self._copy_bytes:
            own.copy()
            on_copied()
        rank = self._ops.rank
        if rank in writers:
            for number, chunk in enumerate(own.chunks):
                parts.add(rank, chunk, own.take(number))
        others = [other for other in range(self._ranks) if other not in writers]
        for number in range(max((len(layout.chunks[other]) for other in others), default=0)):
            came = self._joint.exchange.swap(self._messages(own, number, is_sent=rank in others))
            for other in others if self._ops.is_chief else ():
                self._add_sent(parts, layout, other, number, came[other])
        on_copied()

    def _messages(self, own: _OwnChunks, number: int, *, is_sent: bool) -> list[np.ndarray]:
        """Returns the messages of a round: one chunk to the chief, if this rank has any more of them to send."""
        nothing = np.zeros(0, np.uint8)
        if not is_sent or number >= len(own.chunks):
            return [nothing] * self._ranks
        return [own.take(number).message(), *[nothing] * (self._ranks - 1)]

    def _add_sent(self, parts: DeltaParts, layout: Layout, rank: int, number: int, message: np.ndarray) -> None:
        """Adds the chunk that a rank has sent in the round `number`, if it has so many."""
        if number >= len(layout.chunks[rank]):
            return
        chunk = layout.chunks[rank][number]
        changes = self._by_name[layout.name_of(rank, chunk)]
        parts.add(rank, chunk, ChunkValues.of_message(message, chunk, changes))

    def _write_whole(self, folder: Path, values: Sequence[np.ndarray], trouble: Trouble) -> None:
        trouble.not_finite = not_finite(self._whole, values[:-1], self._check_finite)
        if trouble.not_finite is None:
            self._whole_writer.write(folder / WHOLE_PART, values)

    def _read_back(self, prefix: Path, files: PartFiles) -> None:
        for part in (part for slices in files.slices for part in slices):
            self._reader.read(prefix, part)
        if self._ops.is_chief:
            self._whole_writer.read_back(prefix)

    def _told(self, layout: Layout, states: Mapping[str, FileState]) -> WrittenDelta:
        tables = {name for name, one in self._by_name.items() if isinstance(one, ChangedRows)}
        counts = {name: count for name, count in layout.totals.items() if count}
        rows = {name: count for name, count in counts.items() if name in tables}
        elements = {name: count for name, count in counts.items() if name not in tables}
        return WrittenDelta(states, rows, elements)

    @functools.cached_property
    def _joint(self) -> JointFiles:
        exchange = OneRank() if self._ops.own_rows is None else RankExchange(self._ranks)
        return JointFiles(exchange, self._ops.rank)

    @functools.cached_property
    def _reader(self) -> SliceReader:
        return SliceReader()

    @functools.cached_property
    def _whole_writer(self) -> CheckpointWriter:
        return CheckpointWriter([*self._whole, Slice(STEP, tf.int64, (), (), ())])


class _OwnChunks:
    """What this rank tells, in chunks. They are read as they are taken, unless they have been copied before."""

    def __init__(
        self, session: tf.Session, changes: Sequence[Changes], places: Sequence[np.ndarray], chunks: Sequence[Chunk]
    ) -> None:
        self._session, self._changes, self._places = session, changes, places
        self.chunks = chunks
        self._copies: dict[int, ChunkValues] = {}

    @property
    def size_bytes(self) -> int:
        """The size of all values and places."""
        sizes = [self._changes[chunk.number].value_bytes for chunk in self.chunks]
        return sum(
            chunk.count * (size_bytes + np.dtype(np.int64).itemsize)
            for chunk, size_bytes in zip(self.chunks, sizes, strict=True)
        )

    def copy(self) -> None:
        """Reads all chunks."""
        self._copies = {number: self._read(chunk) for number, chunk in enumerate(self.chunks)}

    def take(self, number: int) -> ChunkValues:
        """Returns a chunk. Call this once for each."""
        copied = self._copies.pop(number, None)
        return self._read(self.chunks[number]) if copied is None else copied

    def _read(self, chunk: Chunk) -> ChunkValues:
        places = self._places[chunk.number][chunk.first : chunk.first + chunk.count]
        return ChunkValues(places, self._changes[chunk.number].read(self._session, chunk.first, chunk.count))
