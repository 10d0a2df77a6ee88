"""`text`: the words or the characters of a text, as ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.id_lists import IdLists, without_empty
from parallax_runner.data.table.columns.ids import Ids, raw_values
from parallax_runner.data.table.columns.keys import Keys
from parallax_runner.data.table.columns.rule import Rule
from parallax_runner.data.table.columns.settings import choice, count, flag, optional, setting
from parallax_runner.data.table.stored_table import (
    BOTH,
    CHARACTER,
    LOWERS,
    SPLITS,
    STANDARDIZES,
    STRIPS,
    WHITESPACE,
    Cell,
    RawColumn,
    Strings,
    Words,
)
from parallax_runner.data.table.words_of_texts import PUNCTUATION


@dataclass(frozen=True)
class Text(IdLists):
    """The settings and what they do are those of Keras' TextVectorization. So `lower` changes the letters A to Z only,
    and only ASCII's white space and punctuation count as such."""

    kind: ClassVar[str] = "text"

    standardize: str = setting(BOTH, choice(STANDARDIZES))
    split: str = setting(WHITESPACE, choice(SPLITS))
    hash: int | None = setting(None, optional(count))
    min_count: int | None = setting(None, optional(count))
    max_size: int | None = setting(None, optional(count))
    oov: int | None = setting(None, optional(count))
    grows: bool = setting(False, flag)
    padded_to: int | None = setting(None, optional(count))

    @property
    def rule(self) -> Rule:
        return Keys(integers=False) if self.grows else self._ids

    def check(self) -> str | None:
        return self.why_not(self._ids, integers=False)

    @property
    def _ids(self) -> Ids:
        return Ids(self.hash, None, self.min_count, self.max_size, self.oov)

    @property
    def raw(self) -> RawColumn:
        return RawColumn(self.name, Cell.STRING, is_list=True, words=Words(self.standardize, self.split))

    def raw_input(self, tf: Any) -> Any:
        return tf.TensorSpec([None], tf.string)

    def raw_example(self, cells: Cells, strings: Strings | None) -> np.ndarray:
        """Returns texts with these words. They can have another punctuation than the files."""
        kept = without_empty(cells)
        assert kept.lengths is not None
        between = b"" if self.split == CHARACTER else b" "
        rows = np.split(raw_values(kept.values, strings), np.cumsum(kept.lengths)[:-1])
        return np.array([between.join(row) for row in rows], dtype=object)

    def values(self, raw: Any, tf: Any) -> Any:
        """See IdLists."""
        texts = tf.strings.lower(raw) if self.standardize in LOWERS else raw
        if self.standardize in STRIPS:
            texts = tf.strings.regex_replace(texts, PUNCTUATION, "")
        return tf.strings.unicode_split(texts, "UTF-8") if self.split == CHARACTER else tf.strings.split(texts)
