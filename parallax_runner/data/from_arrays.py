"""Creates a dataset from the arrays that Keras' `fit` accepts."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from parallax_runner.data.batch_structure import BatchStructure, packed, structures_with_same_names, unpacked
from parallax_runner.data.common_features import common_features
from parallax_runner.data.dataset import Feature
from parallax_runner.data.digest import digest_of
from parallax_runner.data.identity import CONTENT, EXAMPLES, Contents
from parallax_runner.data.stream import epoch_order
from parallax_runner.data.strings import KINDS, as_bytes, dtype_name
from parallax_runner.errors import DataError, Setting


class Arrays:
    """Implements `Dataset` and `ReadByRow` for named arrays with the same number of rows. The stream consists of
    repeated passes over all batches of `global_batch` examples. The last batch of a pass can be partial. Its missing
    examples are counted in `train_size` and in positions. `structure` and `validation_structure` build the elements of
    training and validation from the features. The validation batches have `validation_sizes` examples, in order; by
    default, they are as large as training batches."""

    words_per_example: int | None = None

    def __init__(
        self,
        train: dict[str, np.ndarray],
        validation: dict[str, np.ndarray],
        structure: BatchStructure,
        *,
        global_batch: int,
        shuffle: bool,
        seed: int = 0,
        validation_structure: BatchStructure | None = None,
        validation_sizes: Sequence[int] = (),
        whole_only: bool = False,
    ) -> None:
        """With `shuffle`, each pass has a different order, which depends on `seed`. `whole_only` omits the partial
        batch. Raises DataError if there is no batch, or if the validation examples have another shape."""
        self.features = _features_of(train)
        if validation:
            common_features(self.features, _features_of(validation))
        self.structure, self.global_batch = structure, global_batch
        self.validation_structure = validation_structure or structure
        self._rows = common_length(train, "x")
        self.whole_only = whole_only
        steps = self._rows // global_batch if whole_only else -(-self._rows // global_batch)
        self.train_size = steps * global_batch
        self.validation_size = common_length(validation, "validation_data") if validation else 0
        self.validation_sizes = list(validation_sizes) or batch_sizes(self.validation_size, global_batch)
        if not self._rows:
            raise DataError("there are no examples: the arrays have length 0")
        if not self.train_size:
            raise DataError(f"there are {self._rows} examples, fewer than one batch").about(
                Setting.of("batch_size", global_batch)
            )
        self._train, self._validation = train, validation
        self.shuffle, self.seed = shuffle, seed
        self._orders: dict[int, np.ndarray] = {}

    def with_seed(self, seed: int) -> Arrays:
        """Returns a dataset with the same arrays, shuffled with a different seed."""
        found = copy.copy(self)
        found.seed, found._orders = seed, {}
        return found

    def with_whole_batches(self) -> Arrays:
        """Returns a dataset with the same arrays, without the partial batch. Raises DataError if no batch remains."""
        return Arrays(
            self._train,
            self._validation,
            self.structure,
            global_batch=self.global_batch,
            shuffle=self.shuffle,
            seed=self.seed,
            validation_structure=self.validation_structure,
            validation_sizes=self.validation_sizes,
            whole_only=True,
        )

    @property
    def validation_rows(self) -> list[range]:
        """The rows of each validation batch."""
        ends = itertools.accumulate(self.validation_sizes)
        return [range(end - size, end) for size, end in zip(self.validation_sizes, ends, strict=True)]

    @property
    def has_partial_batches(self) -> bool:
        """Whether the last batch of a pass is partial."""
        return self.train_size > self._rows

    def parts(self) -> dict[str, dict[str, np.ndarray]]:
        """Returns the arrays of the parts `train` and `validation`."""
        return {"train": self._train, "validation": self._validation}

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages about unused examples."""
        left = max(0, self._rows - self.train_size)
        return (f"{left} examples are omitted from each epoch, because they do not fill a batch",) if left else ()

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns examples [start, start + size) of the stream, without those that a partial batch lacks."""
        return self.batch_of_rows(self.train_rows(start, size))

    def train_rows(self, start: int, size: int) -> np.ndarray:
        """Returns the rows of examples [start, start + size) of the stream. The range crosses passes only if a resumed
        run has another batch size than the run that saved its position."""
        passes, places = np.divmod(np.arange(start, start + size), self.train_size)
        exists = places < self._rows
        passes, places = passes[exists], places[exists]
        rows = np.empty(len(places), dtype=np.int64)
        for number in np.unique(passes):
            here = passes == number
            rows[here] = self._order(int(number))[places[here]]
        return rows

    def batch_of_rows(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns these rows of all arrays."""
        return {name: array[rows] for name, array in self._train.items()}

    def validation_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        if start < 0 or start + size > self.validation_size:
            raise IndexError(
                f"validation examples [{start}, {start + size}) out of range: there are {self.validation_size}"
            )
        return {name: array[start : start + size] for name, array in self._validation.items()}

    def sizes(self) -> dict[str, str]:
        """Returns the number of training examples, including those that do not fill a batch."""
        return {EXAMPLES: str(self._rows)}

    def contents(self) -> Contents:
        """Returns digests of the arrays."""
        return Contents(
            training={CONTENT: digest_of(self._train)},
            order=f"seed {self.seed}" if self.shuffle else "as given",
            validation={CONTENT: digest_of(self._validation)},
        )

    def _order(self, number: int) -> np.ndarray:
        if number not in self._orders:
            order = np.arange(self._rows)
            if self.shuffle:
                order = epoch_order(size=self._rows, seed=self.seed, epoch=number)
            self._orders = {kept: one for kept, one in self._orders.items() if abs(kept - number) == 1}
            self._orders[number] = order
        return self._orders[number]


def arrays_dataset(
    x: Any,
    y: Any,
    sample_weight: Any,
    *,
    batch_size: int,
    shuffle: bool,
    validation: Any = None,
    validation_sizes: Sequence[int] = (),
    floatx: str = "float32",
) -> Arrays:
    """Creates a dataset from arrays, or from dicts, tuples or lists of arrays. `validation` is x, (x, y) or (x, y,
    sample_weight), in batches of `validation_sizes` examples. As in Keras, floating-point arrays are cast to `floatx`.

    Raises DataError if the arrays have different lengths, or if `validation` has a different structure.
    """
    given = packed(x, y, sample_weight)
    structure = BatchStructure.of(given)
    if validation is None:
        return Arrays(named_arrays(structure, given, floatx), {}, structure, global_batch=batch_size, shuffle=shuffle)
    held_back = packed(*unpacked(validation))
    structure, validation_structure = structures_with_same_names(structure, BatchStructure.of(held_back))
    train, validated = named_arrays(structure, given, floatx), named_arrays(validation_structure, held_back, floatx)
    return Arrays(
        with_weights_like(validated, train, "x"),
        with_weights_like(train, validated, "validation_data"),
        structure,
        global_batch=batch_size,
        shuffle=shuffle,
        validation_structure=validation_structure,
        validation_sizes=validation_sizes,
    )


def with_weights_like(other: dict[str, np.ndarray], arrays: dict[str, np.ndarray], what: str) -> dict[str, np.ndarray]:
    """Adds weights of 1 to arrays that lack weights which `other` has, because both have the same features.
    class_weight, for example, applies only to training examples. Raises DataError if the arrays have different
    lengths. `what` is their name."""
    missing = {name: array for name, array in other.items() if name not in arrays}
    rows = common_length(arrays, what)
    return arrays | {name: np.ones_like(array, shape=(rows, *array.shape[1:])) for name, array in missing.items()}


def named_arrays(structure: BatchStructure, element: Any, floatx: str | None) -> dict[str, np.ndarray]:
    """Returns the arrays of an element that has this structure, keyed by name. Casts floating-point arrays to
    `floatx` if it is not None. Strings become bytes objects. Raises DataError for other objects."""
    return {name: _array(name, value, floatx) for name, value in structure.flatten(element).items()}


def batch_sizes(rows: int, size: int) -> list[int]:
    """Returns the sizes of batches of `size` rows, of which the last one can be smaller."""
    return [min(size, rows - start) for start in range(0, rows, size)]


def _features_of(arrays: dict[str, np.ndarray]) -> dict[str, Feature]:
    return {name: Feature(array.shape[1:], dtype_name(array)) for name, array in arrays.items()}


def _array(name: str, value: Any, floatx: str | None) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind in KINDS:
        return as_bytes(array, f"«{name}»")
    if floatx is None or not np.issubdtype(array.dtype, np.floating):
        return array
    return array.astype(floatx, copy=False)


def common_length(arrays: dict[str, np.ndarray], what: str) -> int:
    """Returns the number of examples. Raises DataError if the arrays have different lengths."""
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        told = ", ".join(f"{length} for «{name}»" for name, length in lengths.items())
        raise DataError(f"{what}: expected arrays of the same length, found {told}")
    return next(iter(lengths.values()))
