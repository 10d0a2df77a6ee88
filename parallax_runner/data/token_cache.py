"""Caches tokenized text in the user's cache directory. Only the first run on a corpus reads the text itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parallax_runner.data.cache_folder import CacheFolder
from parallax_runner.data.checksums import sum_of
from parallax_runner.data.mapped_file import MappedFile
from parallax_runner.data.tokens import Corpus, TextFile, Tokenizer, tokenize_files
from parallax_runner.errors import DataError
from parallax_runner.files.cache import cache_key, cache_root
from parallax_runner.process.limits import raise_if_limited

FORMAT = 3  # increase this when the file layout, the split or the numbering of words changes


def load_corpus(
    files: Sequence[TextFile],
    *,
    validation_files: Sequence[TextFile] | None = None,
    tokenizer: Tokenizer,
    vocab_size: int,
    cache_dir: str | None,
    source: str,
) -> Corpus:
    """Returns the tokens of `files`, memory-mapped. See `tokenize_files` for the arguments that both functions share.

    `cache_dir` defaults to $XDG_CACHE_HOME/parallax_runner, or ~/.cache/parallax_runner. Of several processes that need
    the same tokens, the first one makes them while the others wait. A damaged folder is made anew.

    Raises DataError if there is no text or the cache cannot be written. `source` names the text in the error message.
    """
    key = fingerprint(files, validation_files, tokenizer=tokenizer, vocab_size=vocab_size)
    cached = CacheFolder(cache_root(cache_dir) / key, "tokenized text")
    with cached.alone():
        if not cached.is_intact():
            corpus = tokenize_files(
                files, validation_files=validation_files, tokenizer=tokenizer, vocab_size=vocab_size
            )
            if len(corpus.train) == 0:
                raise DataError(
                    f"{source}: no text to train on. Expected one sentence per line, and spaces between words."
                )
            cached.publish(lambda folder: _write(corpus, folder))
        return _read(cached)


def fingerprint(
    files: Sequence[TextFile],
    validation_files: Sequence[TextFile] | None,
    *,
    tokenizer: Tokenizer,
    vocab_size: int,
) -> str:
    """Returns 32 hexadecimal digits that change whenever the tokens may change.

    The digits depend on the files' names, sizes and modification times instead of their contents, because reading the
    contents takes as long as tokenizing them.

    Raises DataError if a file does not exist.
    """
    described = [FORMAT, tokenizer.name, vocab_size, _describe(files), _describe(validation_files or ())]
    return cache_key(described)


def _describe(files: Sequence[TextFile]) -> list[tuple[str, int, int]]:
    try:
        states = [file.path.stat() for file in files]
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}.") from error
    return [(file.name, state.st_size, state.st_mtime_ns) for file, state in zip(files, states, strict=True)]


def _write(corpus: Corpus, folder: Path) -> None:
    np.save(folder / "train.npy", corpus.train)
    np.save(folder / "validation.npy", corpus.validation)
    (folder / "vocabulary.txt").write_text("\n".join(corpus.vocabulary) + "\n", encoding="utf-8")


def _read(cached: CacheFolder) -> Corpus:
    folder = cached.path
    try:
        return Corpus(
            train=np.load(folder / "train.npy", mmap_mode="r"),
            validation=np.load(folder / "validation.npy", mmap_mode="r"),
            vocabulary=(folder / "vocabulary.txt").read_text(encoding="utf-8").split("\n")[:-1],
            train_file=MappedFile.of(folder / "train.npy"),
            validation_file=MappedFile.of(folder / "validation.npy"),
            train_digest=sum_of(folder, "train.npy"),
        )
    except PermissionError as error:
        raise cached.of_another_user(error) from error
    except (OSError, EOFError, ValueError) as error:
        raise_if_limited(error)
        raise cached.damaged(error) from error
