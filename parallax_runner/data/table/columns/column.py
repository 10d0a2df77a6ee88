"""The interface of a column's kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from parallax_runner.data.dataset import Feature
from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.stored_table import RawColumn, Strings

# What a column learns from the training rows: arrays by name, such as a vocabulary or a mean.
State = Mapping[str, np.ndarray]
NOTHING_LEARNED: State = {}


class Role(Enum):
    """What a column is for."""

    INPUT = "input"  # an input of the model, at training and when the model is served
    LABEL = "label"
    WEIGHT = "weight"
    GROUP = "group"  # a feature for losses, which a served model does not get
    KEPT = "kept"  # no feature
    DRAWN = "drawn"  # a feature that is in no file, and that a served model does not get


OF_THE_LOSS = frozenset({Role.LABEL, Role.WEIGHT, Role.GROUP})  # a prediction needs none of them


@dataclass(frozen=True)
class TableFeature:
    """What a model's function is told about a feature.

    `kind` is number, category, categories, text, label, weight, group or sampled. `shape` is that of one example.
    `sizes` has one number for each column of a stack: ids are below it. It is empty for numbers. If `is_padded`, id 0
    is padding. If `is_ragged`, an example has any number of ids. If the vocabulary `grows`, the values are keys, which
    are any integers, and `sizes` is empty. `low` and `high` are the smallest and the largest label of the training
    rows, None for other kinds.
    """

    kind: str
    shape: tuple[int | None, ...]
    dtype: str
    sizes: tuple[int, ...] = ()
    is_padded: bool = False
    is_ragged: bool = False
    grows: bool = False
    low: float | None = None
    high: float | None = None

    @property
    def size(self) -> int:
        """Ids of a feature with one column are below this number."""
        return self.sizes[0]

    @property
    def feature(self) -> Feature:
        """The feature as a dataset describes it."""
        if self.is_ragged:
            return Feature(self.shape, self.dtype, "ragged", ragged_rank=1)
        return Feature(self.shape, self.dtype)


class Counting:
    """One pass over a column's training cells. This class learns nothing."""

    def add(self, cells: Cells) -> None:
        """Counts more cells."""

    def state(self) -> State:
        """Returns what was learned from all cells."""
        return NOTHING_LEARNED


@dataclass(frozen=True)
class Faults:
    """Cells that the column does not accept: their rows, counted from the first cell and in their order, and a function
    that says what is wrong with the cell at a place of `rows`."""

    rows: np.ndarray
    reason: Callable[[int], str]


@dataclass(frozen=True)
class Column(ABC):
    """A column of a table. The fields of a subclass are the settings."""

    kind: ClassVar[str]
    role: ClassVar[Role]

    name: str

    def largest_state(self) -> State | None:
        """Returns a state with as many values as the settings allow, or None if they set no limit."""
        return NOTHING_LEARNED

    @property
    def first_id(self) -> int:
        """The id of the first string of the vocabulary, if the column has one."""
        return 0

    def check(self) -> str | None:
        """Returns the reason why the settings do not fit together, or None."""
        return None

    @property
    @abstractmethod
    def raw(self) -> RawColumn | None:
        """The column as it is read from files, or None if it is in no file."""

    def counting(self, strings: Strings | None) -> Counting:
        """Returns a new pass over the training cells. `strings` are the distinct strings of the column."""
        return Counting()

    def faults(self, cells: Cells, strings: Strings | None) -> Faults | None:
        """Returns the cells that the column does not accept, or None if there are none."""
        return None


class FeatureColumn(Column):
    """A column whose cells become a feature of the same name."""

    def lookup(self, state: State, strings: Strings | None) -> np.ndarray | None:
        """Returns the array that `features` needs beside the cells, such as that from codes to ids, or None. It is made
        once. May import TensorFlow."""
        return None

    @abstractmethod
    def described(self, state: State) -> TableFeature:
        """Returns what a model is told about the feature."""

    @abstractmethod
    def features(self, state: State, cells: Cells, lookup: np.ndarray | None) -> dict[str, np.ndarray]:
        """Returns the arrays of a batch: under "" that of a dense feature, or the components of a ragged feature."""


class InputColumn(FeatureColumn):
    """A column that is an input of the model. `features` and `served` compute the same, with NumPy from stored cells
    and with TensorFlow from raw values."""

    role: ClassVar[Role] = Role.INPUT

    @abstractmethod
    def raw_input(self, tf: Any) -> Any:
        """Returns the type of the raw values of a batch, tf.TensorSpec. `tf` is the module TensorFlow."""

    @abstractmethod
    def raw_example(self, cells: Cells, strings: Strings | None) -> np.ndarray:
        """Returns the raw values from which the files' cells come, as `raw_input` describes them."""

    @abstractmethod
    def served(self, state: State, strings: Strings | None, raw: Any, tf: Any) -> dict[str, Any]:
        """Returns tensors like `features`, from a tensor of raw values."""


def only(columns: Sequence[Column], role: Role) -> str | None:
    """Returns the name of the first column with a role, or None if there is none."""
    return next((one.name for one in columns if one.role is role), None)


def raw_columns(columns: Sequence[Column]) -> list[RawColumn]:
    """Returns the columns as they are read from files."""
    return [one.raw for one in columns if one.raw is not None]


def columns_of_the_loss(columns: Sequence[Column]) -> list[str]:
    """Returns the names of the columns that a prediction does not need."""
    return [one.name for one in columns if one.role in OF_THE_LOSS]
