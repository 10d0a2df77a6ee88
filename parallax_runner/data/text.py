"""Text in the layout of the One Billion Word benchmark: each line is one sentence, and white space separates tokens."""

from __future__ import annotations

from pathlib import Path

from parallax_runner.data.dataset import Dataset
from parallax_runner.data.text_files import find_files, refuse_special
from parallax_runner.data.token_cache import load_corpus
from parallax_runner.data.tokens import TextFile, Tokenizer
from parallax_runner.data.windows import language_model_dataset
from parallax_runner.errors import DataError, Setting

WORDS = Tokenizer(name="words-1", split=str.split, decode_errors="strict")
LOWERCASE_WORDS = Tokenizer(name="lowercase-words-1", split=lambda line: line.lower().split(), decode_errors="strict")


def load(
    *,
    path: str,
    vocab_size: int,
    sequence_length: int,
    validation_examples: int,
    seed: int,
    validation_path: str | None = None,
    lowercase: bool = False,
    cache_dir: str | None = None,
) -> Dataset:
    """Returns windows of the text at `path`, a UTF-8 file or a directory of such files. Files whose names end in .gz
    are decompressed.

    The text for validation is at `validation_path`. Without `validation_path`, about 5 % of the files are used for
    validation, or about 5 % of the lines if there are few files. `vocab_size` is in words, `sequence_length` is in
    words per window, and `validation_examples` is in windows. Raises DataError if a path cannot be read, the text has
    no words or the cache cannot be written, and ConfigError if a size is out of range.
    """
    corpus = load_corpus(
        _text_files(path, key="data.path"),
        validation_files=None if validation_path is None else _text_files(validation_path, key="data.validation_path"),
        tokenizer=LOWERCASE_WORDS if lowercase else WORDS,
        vocab_size=vocab_size,
        cache_dir=cache_dir,
        source=path,
    )
    return language_model_dataset(
        corpus,
        sequence_length=sequence_length,
        validation_examples=validation_examples,
        seed=seed,
        source=path,
        validation_source=validation_path,
    )


def _text_files(path: str, *, key: str) -> list[TextFile]:
    root = Path(path).expanduser()
    if root.is_dir():
        files = find_files(root)
        if not files:
            raise DataError("this directory is empty. Expected text files, plain or gzipped.").about(
                Setting.of(key, path)
            )
        return files
    refuse_special(root)
    if root.is_file():
        return [TextFile(root.name, root)]
    raise DataError("no such file or directory. Expected a text file or a directory of text files.").about(
        Setting.of(key, path)
    )
