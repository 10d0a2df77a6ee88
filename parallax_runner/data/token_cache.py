"""Caches tokenized text in the user's cache directory. Only the first run on a corpus reads the text itself."""

from __future__ import annotations

import fcntl
import logging
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from parallax_runner.data.checksums import damage_of, sum_of, write_sums
from parallax_runner.data.mapped_file import MappedFile
from parallax_runner.data.tokens import Corpus, TextFile, Tokenizer, tokenize_files
from parallax_runner.errors import DataError
from parallax_runner.files.cache import cache_key, cache_root
from parallax_runner.files.locks import open_to_lock
from parallax_runner.process.limits import raise_if_limited, with_limit

log = logging.getLogger(__name__)

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
    folder = cache_root(cache_dir) / key
    with _alone_at(folder):
        if not _is_intact(folder):
            corpus = tokenize_files(
                files, validation_files=validation_files, tokenizer=tokenizer, vocab_size=vocab_size
            )
            if len(corpus.train) == 0:
                raise DataError(
                    f"{source}: no text to train on. Expected one sentence per line, and spaces between words."
                )
            _publish(corpus, folder)
        return _read(folder)


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


@contextmanager
def _alone_at(folder: Path) -> Iterator[None]:
    """Holds a folder's lock, so that one process at a time verifies the folder or makes it. There is no lock in a
    read-only cache and on a file system without locks. There, each process that finds no tokens makes them itself."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = open_to_lock(folder.with_name(f".{folder.name}.lock"))
    except OSError:
        yield
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            log.warning("%s cannot be locked: %s", lock.name, error.strerror)
        yield


def _is_intact(folder: Path) -> bool:
    """Returns whether the folder exists and is intact. Removes a damaged folder."""
    try:
        if not folder.exists():
            return False
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        damage = damage_of(folder)
    except PermissionError as error:
        raise _of_another_user(error) from error
    if damage is not None:
        _remove(folder, damage)
    return damage is None


def _remove(folder: Path, damage: str) -> None:
    """Removes a damaged folder, or what is in its place. Renames it first, so that no process ever sees a part of a
    folder."""
    log.warning("%s: damaged cache of tokenized text, making it anew: %s", folder, damage)
    moved = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
    try:
        folder.rename(moved)
    except FileNotFoundError:  # without locks, another process can be first
        return
    except OSError as error:
        raise DataError(f"{folder}: damaged cache of tokenized text: {damage}. Delete the directory.") from error
    if moved.is_dir():
        shutil.rmtree(moved, ignore_errors=True)
    else:
        moved.unlink()


def _unusable(folder: Path, error: OSError) -> DataError:
    # Errors raised by NumPy itself have a message but no errno.
    reason = with_limit(str(error.strerror or error))
    return DataError(
        f"{folder.parent}: cannot write tokenized text: {reason}. "
        "Set data.cache_dir or XDG_CACHE_HOME to a writable directory."
    )


def _publish(corpus: Corpus, folder: Path) -> None:
    """Writes the corpus to a temporary folder and renames it to `folder`, so that a reader sees either all files or no
    files."""
    unfinished = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
    try:
        unfinished.mkdir(parents=True)
        np.save(unfinished / "train.npy", corpus.train)
        np.save(unfinished / "validation.npy", corpus.validation)
        (unfinished / "vocabulary.txt").write_text("\n".join(corpus.vocabulary) + "\n", encoding="utf-8")
        write_sums(unfinished)
        _rename_unless_there(unfinished, folder)
    except OSError as error:
        raise _unusable(folder, error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _rename_unless_there(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.exists():  # without locks, another process can be first, with the same contents
            raise


def _read(folder: Path) -> Corpus:
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
        raise _of_another_user(error) from error
    except (OSError, EOFError, ValueError) as error:
        raise_if_limited(error)
        raise DataError(f"{folder}: damaged cache of tokenized text: {error}. Delete the directory.") from error


def _of_another_user(error: PermissionError) -> DataError:
    return DataError(
        f"{error.filename}: cannot be read, because it belongs to another user. Set data.cache_dir or "
        "XDG_CACHE_HOME to your own directory, or ask its owner to make the file readable."
    )
