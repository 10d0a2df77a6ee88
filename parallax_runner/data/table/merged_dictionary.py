"""Makes one dictionary of the dictionaries of all blocks of a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from parallax_runner.data.table.arrow_buffers import array_of_integers, numbers_of, offsets_and_data
from parallax_runner.data.table.fixed_width import FixedWidth, as_integers, bytes_of_integers
from parallax_runner.data.table.stored_table import MISSING_CODE

_CODE = np.dtype(np.int32)
_NOTHING = np.array([MISSING_CODE], dtype=_CODE)


@dataclass(frozen=True)
class MergedDictionary:
    """The distinct strings that are not empty, in the order in which they first appear. String i has the code i + 1 and
    the bytes `data[offsets[i] : offsets[i + 1]]`. `codes` yields int32 [strings + 1] for each dictionary: the codes of
    its strings, behind the code of an empty string."""

    offsets: np.ndarray  # int64 [strings + 1]
    data: np.ndarray  # uint8
    codes: Iterator[np.ndarray]


def merged(dictionaries: Sequence[pa.Array]) -> MergedDictionary:
    """Returns the dictionaries, arrays of pa.binary(), as one."""
    numbers = [as_integers(words) for words in dictionaries]
    integers = [one for one in numbers if one is not None]
    widths = {one.width for one in integers if one.width}
    if len(integers) == len(numbers) and len(widths) == 1:
        return _of_integers(integers, widths.pop())
    return _of_strings(dictionaries)


def _of_integers(dictionaries: Sequence[FixedWidth], width: int) -> MergedDictionary:
    numbers = [one.integers for one in dictionaries]
    coded = pa.chunked_array([array_of_integers(one) for one in numbers]).dictionary_encode()
    distinct = numbers_of(coded.chunk(0).dictionary, np.dtype(np.int64))
    places = _places(coded, [len(one) for one in numbers])
    return MergedDictionary(
        offsets=np.arange(len(distinct) + 1) * width,
        data=bytes_of_integers(distinct, width),
        codes=(_codes(one.has_text, numbers + 1) for one, numbers in zip(dictionaries, places, strict=True)),
    )


def _of_strings(dictionaries: Sequence[pa.Array]) -> MergedDictionary:
    """All strings of a column may have more bytes than offsets of 32 bits reach."""
    large = pa.large_binary()
    chunks = [pa.array([b""], large), *(words.cast(large) for words in dictionaries)]
    coded = pa.chunked_array(chunks).dictionary_encode()
    offsets, data = offsets_and_data(coded.chunk(0).dictionary)
    _, *places = _places(coded, [len(chunk) for chunk in chunks])
    return MergedDictionary(
        offsets=offsets[1:],  # without the empty string
        data=data,
        codes=(np.concatenate([_NOTHING, numbers]) for numbers in places),
    )


def _places(coded: pa.ChunkedArray, lengths: Sequence[int]) -> Iterator[np.ndarray]:
    """Yields the place of each string in the merged dictionary, for chunks of these lengths."""
    chunks = iter(coded.chunks)  # pyarrow leaves out empty chunks
    for length in lengths:
        yield numbers_of(next(chunks).indices, _CODE) if length else np.empty(0, dtype=_CODE)


def _codes(has_text: np.ndarray, codes: np.ndarray) -> np.ndarray:
    found = np.zeros(len(has_text) + 1, dtype=_CODE)
    found[1:][has_text] = codes
    return found
