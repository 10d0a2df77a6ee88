"""The dataset of a stored table: random rows of mapped arrays, as features of a model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parallax_runner.data.digest import digest_of
from parallax_runner.data.draws import keys
from parallax_runner.data.identity import CONTENT, EXAMPLES, Contents
from parallax_runner.data.table.cells import Cells, PartReader, arrays_of
from parallax_runner.data.table.columns.category import Category
from parallax_runner.data.table.columns.column import Column, FeatureColumn, InputColumn, Role, only
from parallax_runner.data.table.columns.ids import CODES
from parallax_runner.data.table.columns.sampled import Sampled
from parallax_runner.data.table.fitted import Fitted, numbering, save_readable
from parallax_runner.data.table.row_order import GoodRows, row_stream
from parallax_runner.data.table.stacks import Stack, described_features
from parallax_runner.data.table.stored_table import TEST, TRAIN, VALIDATION, StoredTable
from parallax_runner.data.table.strings_of_codes import strings_of
from parallax_runner.data.table.vocabularies import LEARNED, Vocabulary
from parallax_runner.errors import DataError


class TableDataset:
    """Implements `Dataset`. Each replica gets batches of its own size from an endless stream, so no batch is partial.

    `table_features` describes the features to the model's function. `labels`, `sample_weight` and `groups` are the
    names of the features that are the label, the weight and the group of an example, or None. `why_different` tells why
    two processes have other data.
    """

    words_per_example: int | None = None
    why_different = (
        "the files of the table have changed since the driver read them, or are not the same on each host. Start again "
        "when they are complete"
    )

    def __init__(
        self,
        table: StoredTable,
        columns: Sequence[Column],
        stacks: Sequence[Stack],
        found: Fitted,
        *,
        shuffle: str,
        seed: int,
    ) -> None:
        """`found` is what the columns have learned. Raises ConfigError if columns cannot be stacked."""
        self.table, self.columns, self.stacks, self.fitted = table, tuple(columns), tuple(stacks), found
        self._shuffle, self._seed = shuffle, seed
        self._parts = {name: PartReader(table, part) for name, part in table.parts.items()}
        self._good = {name: GoodRows(part.rows, found.skipped.get(name)) for name, part in table.parts.items()}
        self.train_size = self._good[TRAIN].count
        self.validation_size = self._count_of(VALIDATION)
        self.test_size = self._count_of(TEST)
        if not self.train_size:
            raise DataError("there are no rows to train on")
        self.table_features = described_features(
            self.columns, self.stacks, {one.name: found.of(one.name) for one in self.columns}
        )
        self.features = {name: one.feature for name, one in self.table_features.items()}
        self.labels = only(self.columns, Role.LABEL)
        self.sample_weight = only(self.columns, Role.WEIGHT)
        self.groups = only(self.columns, Role.GROUP)
        inputs = [one for one in self.columns if one.role is Role.INPUT]
        self.numbering = numbering(table, inputs, found)
        self._stream = row_stream(shuffle, size=self.train_size, seed=seed)
        self._lookups: dict[str, np.ndarray | None] = {}
        self._draw_keys = dict(zip((TRAIN, VALIDATION, TEST), keys(seed, count=3), strict=True))

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        cells = self._taken(TRAIN, self._stream.elements(start, size))
        return self._batch(cells, np.arange(start, start + size), self._draw_keys[TRAIN])

    def validation_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        return self._rows(VALIDATION, start, size)

    def test_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns test examples [start, start + size), as `validation_batch` does."""
        return self._rows(TEST, start, size)

    def training_rows(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns training examples [start, start + size) in the order of the files."""
        return self._rows(TRAIN, start, size)

    def ids(self, part: str, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns the strings of the columns of the kind `id` in rows [start, start + size) of a part, by column."""
        cells = self._taken(part, np.arange(start, start + size))
        kept = [one.name for one in self.columns if one.role is Role.KEPT]
        words = {name: strings_of(self.table.strings[name], cells[name].values) for name in kept}
        return {name: np.array([word.decode() for word in each], dtype=object) for name, each in words.items()}

    def raw_inputs(self, features: Collection[str], tf: Any) -> dict[str, Any]:
        """Returns the types of the raw columns of these features, as `FromRaw` says."""
        return {one.name: one.raw_input(tf) for one in self._behind(features)}

    def served_features(self, features: Collection[str], raw: Mapping[str, Any], tf: Any) -> dict[str, Any]:
        """Returns the features as tensors, computed from tensors of the raw columns."""
        made: dict[str, Any] = {}
        for column in self._behind(features):
            strings = self.table.strings.get(column.name)
            tensors = column.served(self.fitted.of(column.name), strings, raw[column.name], tf)
            made |= {component_name(column.name, part): tensor for part, tensor in tensors.items()}
        stacks = [one for one in self.stacks if one.name in features]
        return stacked_features(stacks, made, lambda tensors: tf.stack(tensors, axis=1))

    def raw_examples(self, features: Collection[str], count: int) -> dict[str, np.ndarray]:
        """Returns the raw columns of the first validation rows, or of the first training rows."""
        part = VALIDATION if self.validation_size >= count else TRAIN
        cells = self._taken(part, np.arange(count) % self._good[part].count)
        columns = self._behind(features)
        return {one.name: one.raw_example(cells[one.name], self.table.strings.get(one.name)) for one in columns}

    def columns_with_vocabulary(self) -> list[str]:
        """Returns the names of the columns that have a vocabulary."""
        return [one.name for one in self.columns if CODES in self.fitted.of(one.name)]

    def vocabulary_of(self, column: str) -> Vocabulary | None:
        """Returns the vocabulary of a column, or None if it has none."""
        if column not in self.columns_with_vocabulary():
            return None
        (found,) = [one for one in self.columns if one.name == column]
        codes = self.fitted.of(column)[CODES]
        return Vocabulary(found.first_id, strings_of(self.table.strings[column], codes))

    def save_learned(self, folder: Path) -> None:
        """Writes vocabularies and statistics to a file in the folder. Raises OSError if it cannot be written."""
        save_readable(folder / LEARNED, self.table, self.columns, self.fitted)

    def sizes(self) -> dict[str, str]:
        """Returns the number of training examples."""
        return {EXAMPLES: str(self.train_size)}

    def contents(self) -> Contents:
        """Returns the digest of the training rows, and that of the validation rows."""
        part = self.table.parts.get(VALIDATION)
        return Contents(
            training={CONTENT: self._digest_of_training()},
            order=f"shuffle {self._shuffle}, seed {self._seed}",
            validation={} if part is None else {CONTENT: digest_of(arrays_of(part))},
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages about rows that are left out."""
        skipped = self.table.skipped_rows + sum(len(rows) for rows in self.fitted.skipped.values())
        return (f"{skipped} bad rows are skipped (data.on_bad_row)",) if skipped else ()

    def _count_of(self, part: str) -> int:
        return self._good[part].count if part in self._parts else 0

    def _rows(self, part: str, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns rows of a part in the order of the files. Raises IndexError beyond the part."""
        count = self._count_of(part)
        if start < 0 or start + size > count:
            raise IndexError(f"rows [{start}, {start + size}) for {part} out of range: there are {count}")
        rows = np.arange(start, start + size)
        return self._batch(self._taken(part, rows), rows, self._draw_keys[part])

    def _digest_of_training(self) -> str:
        skipped = self.fitted.skipped.get(TRAIN)
        return self.table.digest if skipped is None else f"{self.table.digest} {digest_of({TRAIN: skipped})}"

    def _taken(self, part: str, numbers: np.ndarray) -> dict[str, Cells]:
        """Returns the cells of good rows. `numbers` counts only these."""
        return self._parts[part].take(self._good[part].rows(numbers))

    def _behind(self, features: Collection[str]) -> list[InputColumn]:
        """Returns the columns from which features are computed. Raises DataError for a feature that a served model
        cannot get."""
        names = {name for stack in self.stacks if stack.name in features for name in stack.columns} | set(features)
        found: list[InputColumn] = []
        for column in self.columns:
            if column.name not in names:
                continue
            if not isinstance(column, InputColumn):
                raise DataError(
                    f"an output depends on «{column.name}», a {column.kind} column, which a served model does not get"
                )
            found.append(column)
        return found

    def _of_cells(self) -> Iterator[FeatureColumn]:
        """Yields the columns that become features of their own cells."""
        return (one for one in self.columns if isinstance(one, FeatureColumn))

    def _batch(self, cells: Mapping[str, Cells], positions: np.ndarray, key: np.uint64) -> dict[str, np.ndarray]:
        made: dict[str, np.ndarray] = {}
        for column in self._of_cells():
            arrays = column.features(self.fitted.of(column.name), cells[column.name], self._lookup(column))
            made |= {component_name(column.name, part): array for part, array in arrays.items()}
        for drawn in self.columns:
            if isinstance(drawn, Sampled):
                made[drawn.name] = self._drawn(drawn, positions, key)
        return stacked_features(self.stacks, made, lambda arrays: np.stack(arrays, axis=1))

    def _lookup(self, column: FeatureColumn) -> np.ndarray | None:
        """Returns the array that the column needs beside its cells. It is made when a batch needs it first, because
        hashing imports TensorFlow."""
        if column.name not in self._lookups:
            strings = self.table.strings.get(column.name)
            self._lookups[column.name] = column.lookup(self.fitted.of(column.name), strings)
        return self._lookups[column.name]

    def _drawn(self, column: Sampled, positions: np.ndarray, key: np.uint64) -> np.ndarray:
        source = next(one for one in self.columns if one.name == column.from_)
        assert isinstance(source, Category)
        rule = source.rule
        (size,) = rule.sizes(self.fitted.of(source.name))
        return column.drawn(positions, key, rule.first(), size)


def component_name(column: str, part: str) -> str:
    """Returns the name of an array or tensor in a batch. `part` is empty for a dense feature."""
    return f"{column}/{part}" if part else column


def stacked_features(stacks: Sequence[Stack], made: Mapping[str, Any], stack: Any) -> dict[str, Any]:
    """Returns arrays or tensors by feature: the columns of each stack are joined by `stack`, others stay as they
    are."""
    gone = {name for one in stacks for name in one.columns}
    joined = {one.name: stack([made[name] for name in one.columns]) for one in stacks}
    return joined | {name: value for name, value in made.items() if name not in gone}
