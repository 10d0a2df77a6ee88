"""What a plan needs to know about files that are not converted: everything that the settings determine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from parallax_runner.data.table.columns.column import NOTHING_LEARNED, Column, Role, State, only
from parallax_runner.data.table.stacks import Stack, described_features
from parallax_runner.data.table.stored_table import VALIDATION
from parallax_runner.errors import DataError, Setting

CONVERT = "Start the training once (action=train train.steps=1), which converts them"


class UnreadTable:
    """Implements `Dataset` without rows. Each vocabulary has its largest size.

    `train_size` and `validation_size` do not count rows. `validation_size` is 0 if there are no validation rows.
    """

    words_per_example: int | None = None
    why_unread = "action=plan reads no rows of files that are not converted"

    def __init__(self, columns: Sequence[Column], stacks: Sequence[Stack], parts: Collection[str]) -> None:
        """Raises DataError if a vocabulary can have any size, and ConfigError if columns cannot be stacked."""
        states = _largest_states(columns)
        self.table_features = described_features(columns, stacks, states)
        self.features = {name: one.feature for name, one in self.table_features.items()}
        self.labels, self.sample_weight = only(columns, Role.LABEL), only(columns, Role.WEIGHT)
        self.groups = only(columns, Role.GROUP)
        self.train_size = np.iinfo(np.int64).max
        self.validation_size = self.train_size if VALIDATION in parts else 0
        self._bounded = [name for name, state in states.items() if state]

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages about what the plan does not know."""
        if not self._bounded:
            return ()
        names = ", ".join(f"«{name}»" for name in self._bounded)
        return (f"the vocabularies of {names} are planned with max_size strings, because the files are not converted",)

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Raises DataError, because there are no rows."""
        raise unread("this plan needs rows")

    def validation_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Raises DataError, because there are no rows."""
        raise unread("this plan needs rows")


def unread(reason: str, *settings: Setting) -> DataError:
    """Returns the error of a plan that needs rows."""
    return DataError(f"{reason}, and {UnreadTable.why_unread}.").about(*settings, remedy=CONVERT)


def _largest_states(columns: Sequence[Column]) -> Mapping[str, State]:
    found = {one.name: one.largest_state() for one in columns}
    unlimited = [name for name, state in found.items() if state is None]
    if unlimited:
        names = ", ".join(f"«{name}»" for name in unlimited)
        raise DataError(f"the sizes of the vocabularies of {names} are unknown, and {UnreadTable.why_unread}.").about(
            Setting(f"data.columns.{unlimited[0]}", None), remedy=f"{CONVERT}; or limit them with max_size or hash"
        )
    return {name: NOTHING_LEARNED if state is None else state for name, state in found.items()}
