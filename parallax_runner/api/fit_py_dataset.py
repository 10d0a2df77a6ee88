"""Makes the batches of a `keras.utils.PyDataset` or a generator for `fit`, and of validation data beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from parallax_runner.api.fit_arrays import readable
from parallax_runner.api.fit_generator import KIND as GENERATOR
from parallax_runner.api.fit_generator import GeneratedBatches, is_generator
from parallax_runner.api.fit_sparse import has_sparse
from parallax_runner.api.fit_validation import InBatches, as_arrays
from parallax_runner.data.batch_structure import PARTS, BatchStructure, packed, structures_with_same_names, unpacked
from parallax_runner.data.from_arrays import common_length, named_arrays, with_weights_like
from parallax_runner.data.python_batches import Batch, PythonBatches
from parallax_runner.errors import ConfigError, DataError, Setting

KIND = "keras.utils.PyDataset"


def is_py_dataset(given: Any) -> bool:
    """Returns whether `given` is a `keras.utils.PyDataset`."""
    import keras

    return isinstance(given, keras.utils.PyDataset)


def py_dataset_of(
    train: Any,
    validation: Any,
    *,
    class_weight: dict[int, float] | None,
    shuffle: bool,
    validation_batch: int,
    validation_steps: int | None,
    steps_per_epoch: int | None,
) -> PythonBatches:
    """Returns the dataset for `train`, a `keras.utils.PyDataset` or a generator. `validation` is a PyDataset, arrays, a
    `tf.data.Dataset`, or None.

    Raises ConfigError or DataError if the batches cannot be divided among workers.
    """
    made = MadeElements(GeneratedBatches(train) if is_generator(train) else train, "x", class_weight)
    if made.count is None and steps_per_epoch is None:
        raise ConfigError("the data never ends").about(
            Setting("steps_per_epoch", "None", where="fit"), remedy="set the number of steps per epoch"
        )
    if made.count == 0:
        raise DataError(f"x (fit): the {made.kind} has no batches")
    structure = BatchStructure.of(made.element(0))
    if validation is None:
        reader = NamedBatches(made, structure)
        return PythonBatches(
            reader, None, structure, structure, kind=made.kind, shuffle=shuffle, epoch_steps=steps_per_epoch
        )
    held_back = _held_back(validation, validation_batch, validation_steps)
    structure, validation_structure = structures_with_same_names(structure, BatchStructure.of(held_back.element(0)))
    reader, validation_reader = NamedBatches(made, structure), NamedBatches(held_back, validation_structure)
    one, other = reader.read(0), validation_reader.read(0)
    reader.like, validation_reader.like = other, one
    return PythonBatches(
        reader,
        validation_reader,
        structure,
        validation_structure,
        kind=made.kind,
        shuffle=shuffle,
        epoch_steps=steps_per_epoch,
    )


def arrays_of(given: Any, what: str, steps: int | None) -> InBatches:
    """Makes all batches of a `keras.utils.PyDataset`, or the first `steps`, and returns their rows as arrays."""
    made = MadeElements(given, what, most=steps)
    if not made.count:
        raise ConfigError(f"{what} (fit): expected a {KIND} with at least one batch")
    return InBatches.joined([made.element(index) for index in range(made.count)], f"{what} (fit)")


class Elements(Protocol):
    """Elements of batches, as Keras passes them to a step. `what` is the name of the argument. If `floatx` is not None,
    floating-point arrays are cast to it."""

    what: str
    floatx: str | None
    is_read_once: bool

    @property
    def count(self) -> int | None:
        """The number of elements in a pass, or None if a pass never ends."""
        ...

    def element(self, index: int) -> Any:
        """Returns element `index`."""
        ...

    def go_to_epoch(self, number: int, earlier: Sequence[int]) -> None:
        """Ends the epochs before epoch `number`, as `Reader` does."""
        ...


class MadeElements:
    """Implements `Elements` for a `keras.utils.PyDataset` or `GeneratedBatches`, of which `most` limits the number of
    batches."""

    floatx: str | None = None  # Keras casts arrays, but not the batches that Python code makes

    def __init__(
        self, given: Any, what: str, class_weight: dict[int, float] | None = None, most: int | None = None
    ) -> None:
        self._given, self.what, self._class_weight = given, what, class_weight
        self.is_read_once = isinstance(given, GeneratedBatches)
        self.kind = GENERATOR if self.is_read_once else KIND
        counted: int | None = given.num_batches
        self.count = counted if most is None or (counted is not None and counted < most) else most
        self._at: tuple[int, int] | None = None  # the epoch, and the number of earlier calls of `fit`
        self._called = 0  # the number of calls of `on_epoch_begin` and `on_epoch_end`

    def element(self, index: int) -> Any:
        """Makes batch `index`. Raises ConfigError or DataError if it is not made of dense arrays of numbers."""
        made = readable(self._given[index], self.what)
        if has_sparse(made):
            raise ConfigError(
                f"{self.what} (fit): batch {index} of the {self.kind} has a sparse matrix: make dense arrays, or pass "
                "the whole sparse matrix to fit"
            )
        parts = self._parts(made)
        return parts if self._class_weight is None else self._weighted(parts, self._class_weight)

    def go_to_epoch(self, number: int, earlier: Sequence[int]) -> None:
        """Calls `on_epoch_begin` and `on_epoch_end` as Keras does before the first step of epoch `number`, also in the
        earlier calls of `fit`. Makes each of these calls once."""
        if (number, len(earlier)) == self._at:
            return
        end, begin = self._given.on_epoch_end, self._given.on_epoch_begin
        calls = []
        for epochs in [*earlier, number]:
            calls += [end, *[begin, end] * epochs]  # Keras resets its iterator before the first epoch of a call
        for call in [*calls, begin][self._called :]:
            call()
        self._at, self._called = (number, len(earlier)), len(calls) + 1

    def _parts(self, made: Any) -> Any:
        """Returns what Keras makes of a batch: a dict, or a tuple of one to three parts."""
        if isinstance(made, dict):
            return made
        parts = tuple(made) if isinstance(made, tuple | list) else (made,)
        if not 1 <= len(parts) <= len(PARTS):
            raise DataError(
                f"{self.what} (fit): a batch of the {self.kind} is a tuple of length {len(parts)}; expected (x,), "
                "(x, y) or (x, y, sample_weight), or a dict"
            )
        return parts

    def _weighted(self, parts: Any, class_weight: dict[int, float]) -> Any:
        """Adds the weights of classes to (x, y). As in Keras, elements without y stay as they are."""
        from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

        if isinstance(parts, dict) or len(parts) == 1:
            return parts
        if len(parts) == len(PARTS):
            raise ConfigError(f"class_weight (fit): {self.what} already has weights; remove class_weight")
        return (*parts, class_weight_to_sample_weights(parts[1], class_weight))


class SlicedElements:
    """Implements `Elements` for `given`, arrays of validation data."""

    what = "validation_data"
    is_read_once = False

    def __init__(self, given: InBatches, floatx: str | None) -> None:
        self._arrays, self._bounds, self.floatx = packed(*unpacked(given.arrays)), given.bounds(), floatx
        self.count = len(given.sizes)

    def element(self, index: int) -> Any:
        """Returns element `index`."""
        import keras

        first, end = (bounds[index] for bounds in self._bounds)
        return keras.tree.map_structure(lambda array: array[first:end], self._arrays)

    def go_to_epoch(self, number: int, earlier: Sequence[int]) -> None:
        """Does nothing, because all epochs are the same."""


class NamedBatches:
    """Implements `Reader` for elements that all have one structure. If a batch lacks weights that `like` has, it gets
    weights of 1."""

    def __init__(self, elements: Elements, structure: BatchStructure) -> None:
        self._elements, self._structure = elements, structure
        self.is_read_once = elements.is_read_once
        self.like: Batch = {}

    @property
    def count(self) -> int | None:
        """The number of batches in a pass."""
        return self._elements.count

    def read(self, index: int) -> Batch:
        """Makes batch `index`. Raises DataError if it has other parts than the first batch, or if its arrays have
        different numbers of rows, or no rows."""
        element, what = self._elements.element(index), f"batch {index} of {self._elements.what}"
        found = BatchStructure.of(element)
        if not found.has_form_of(self._structure):
            raise DataError(f"{what}: it has the features {found.names}, but the first batch has other ones")
        batch = named_arrays(self._structure, element, self._elements.floatx)
        if not common_length(batch, what):
            raise DataError(f"{what}: it has no examples: leave this batch out")
        return with_weights_like(self.like, batch, what)

    def go_to_epoch(self, number: int, earlier: Sequence[int]) -> None:
        """Ends the epochs before epoch `number`, as `Reader` does."""
        self._elements.go_to_epoch(number, earlier)


def _held_back(given: Any, batch_size: int, steps: int | None) -> MadeElements | SlicedElements:
    """Returns the elements of the validation data. Raises ConfigError if they never end."""
    import keras
    import tensorflow as tf

    if not is_py_dataset(given):
        floatx = None if isinstance(given, tf.data.Dataset) else keras.config.floatx()
        return SlicedElements(as_arrays(given, batch_size=batch_size, steps=steps), floatx)
    made = MadeElements(given, "validation_data", most=steps)
    if made.count is None:
        raise ConfigError("validation_data (fit): it never ends: set validation_steps")
    if made.count == 0:
        raise ConfigError("validation_data (fit): it has no batches")
    return made
