"""Converts text files to arrays of word ids. Lines are split into tokens, words are numbered by frequency, and some of
the data is held out for validation."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from parallax_runner.data.mapped_file import MappedFile
from parallax_runner.errors import ConfigError, DataError, Setting

END_OF_SENTENCE = "</s>"
UNKNOWN = "<unk>"
VALIDATION_SHARE = 0.05  # fraction of the files, or of the blocks of lines if there are too few files
LINES_PER_BLOCK = 50


@dataclass(frozen=True)
class TextFile:
    """A file to read. `name` is its path relative to the directory that was searched, so the name is the same on every
    machine."""

    name: str
    path: Path


@dataclass(frozen=True)
class Tokenizer:
    """Splits lines into tokens. `name` must change whenever the tokens change."""

    name: str
    split: Callable[[str], list[str]]
    decode_errors: str  # "strict" or "replace", for bytes that are not UTF-8


@dataclass(frozen=True)
class Corpus:
    """Word ids, int32 [tokens], in reading order. `vocabulary[id]` is the word with that id; the most frequent words
    come first."""

    train: np.ndarray
    validation: np.ndarray
    vocabulary: Sequence[str]
    train_file: MappedFile | None = None  # the file that the array is mapped from, if any
    validation_file: MappedFile | None = None
    train_digest: str = ""  # a known digest of `train`


def tokenize_files(
    files: Sequence[TextFile], *, validation_files: Sequence[TextFile] | None, tokenizer: Tokenizer, vocab_size: int
) -> Corpus:
    """Reads files, splits them into words and numbers the words. Only words in the training part are counted, so the
    validation part does not influence the vocabulary.

    Without `validation_files`, about 5 % of the files are held out for validation, or about 5 % of the lines if there
    are fewer than 20 files.

    Raises DataError if a file cannot be read, and ConfigError if `vocab_size` is too small.
    """
    if vocab_size < 3:
        raise ConfigError(f"expected at least 3, to include {UNKNOWN}, {END_OF_SENTENCE} and a word.").about(
            Setting.of("data.vocab_size", vocab_size)
        )
    first_seen: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    pieces = _read_pieces(files, tokenizer, first_seen)
    if validation_files is None:
        train_names, validation_names = split_names(list(pieces))
        train = _join(pieces[name] for name in train_names)
        validation = _join(pieces[name] for name in validation_names)
    else:
        train = _join(iter(pieces.values()))
        validation = _join(iter(_read_pieces(validation_files, tokenizer, first_seen).values()))
    words = list(first_seen)
    vocabulary, ids = number_by_frequency(words, np.bincount(train, minlength=len(words)), vocab_size)
    return Corpus(ids[train], ids[validation], vocabulary)


def split_names(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits names into (train, validation) by the hash of each name. Both parts keep the given order.

    If there are two or more names, each part gets at least one name, since a directory may have few files.
    """
    by_hash = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    count = max(round(VALIDATION_SHARE * len(names)), 1) if len(names) > 1 else 0
    chosen = set(by_hash[:count])
    return [name for name in names if name not in chosen], [name for name in names if name in chosen]


def number_by_frequency(words: Sequence[str], counts: np.ndarray, vocab_size: int) -> tuple[list[str], np.ndarray]:
    """Returns the vocabulary, at most `vocab_size` words, and the id of each of `words`, int32 [len(words)].

    Words are sorted by descending frequency, as a log-uniform candidate sampler expects, and then alphabetically. The
    count of `<unk>` includes the counts of the words that it replaces. The vocabulary always contains `<unk>` and
    `</s>`.
    """
    count_of = {UNKNOWN: 0, END_OF_SENTENCE: 0} | dict(zip(words, counts.tolist(), strict=True))
    ordinary = [word for word, count in count_of.items() if count > 0 and word not in (UNKNOWN, END_OF_SENTENCE)]
    ordinary.sort(key=lambda word: (-count_of[word], word))
    kept = ordinary[: vocab_size - 2]
    count_of[UNKNOWN] += sum(count_of[word] for word in ordinary[vocab_size - 2 :])
    vocabulary = sorted([*kept, UNKNOWN, END_OF_SENTENCE], key=lambda word: (-count_of[word], word))
    id_of = {word: number for number, word in enumerate(vocabulary)}
    unknown = id_of[UNKNOWN]
    return vocabulary, np.array([id_of.get(word, unknown) for word in words], dtype=np.int32)


def _read_pieces(
    files: Sequence[TextFile], tokenizer: Tokenizer, first_seen: defaultdict[str, int]
) -> dict[str, np.ndarray]:
    """Returns the pieces, keyed by name, to divide between training and validation. The pieces are whole files, or
    blocks of lines if there are few files, since one file may contain most of the text."""
    if len(files) * VALIDATION_SHARE < 1:
        return {
            f"{file.name}:{number}": block
            for file in files
            for number, block in enumerate(_read_blocks(file, tokenizer, first_seen))
        }
    return {file.name: _join(_read_blocks(file, tokenizer, first_seen)) for file in files}


def _read_blocks(file: TextFile, tokenizer: Tokenizer, first_seen: defaultdict[str, int]) -> Iterator[np.ndarray]:
    """Yields the tokens of each block of lines as int32 numbers. Words are numbered in the order in which they are
    first seen."""
    for lines in _line_blocks(file, tokenizer.decode_errors):
        tokens: list[str] = []
        for line in lines:
            words = tokenizer.split(line)
            if words:
                tokens += words
                tokens.append(END_OF_SENTENCE)
        yield np.fromiter(map(first_seen.__getitem__, tokens), dtype=np.int32, count=len(tokens))


def _line_blocks(file: TextFile, decode_errors: str) -> Iterator[list[str]]:
    opened = _opener(file)
    try:
        with opened(file.path, "rt", encoding="utf-8", errors=decode_errors) as stream:
            while lines := list(itertools.islice(stream, LINES_PER_BLOCK)):
                yield lines
    except UnicodeDecodeError as error:
        raise DataError(f"{file.path}: expected UTF-8 text, {_not_utf8(file)}. Convert or remove this file.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file.path}: cannot be read: {error}. Expected a text file, plain or gzipped.") from error


def _opener(file: TextFile) -> Callable[..., IO[Any]]:
    return gzip.open if file.path.suffix == ".gz" else open


def _not_utf8(file: TextFile) -> str:
    """Returns which line of a file is not UTF-8. The decoder does not know it: it counts from the start of a block."""
    first_byte = 0
    with _opener(file)(file.path, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return (
                    f"but line {number} has the byte 0x{line[error.start]:02x} at column {error.start + 1} "
                    f"(byte {first_byte + error.start} of the text): {error.reason}"
                )
            first_byte += len(line)
    return "but it changed while it was read"


def _join(arrays: Iterator[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype=np.int32), *arrays])
