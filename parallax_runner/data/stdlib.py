"""The source code of Python's standard library: real text that needs no download."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

from parallax_runner.data.dataset import Dataset
from parallax_runner.data.text_files import find_files
from parallax_runner.data.token_cache import load_corpus
from parallax_runner.data.tokens import Tokenizer
from parallax_runner.data.windows import language_model_dataset
from parallax_runner.errors import DataError

# A token is a name, a number (0xff, 1.5e3), or any other single character. White space separates tokens.
_TOKEN = re.compile(r"[^\W\d]\w*|\d[\w.]*|[^\w\s]")

# Some files of Python's own tests are badly encoded on purpose.
PYTHON_SOURCE = Tokenizer(name="python-1", split=_TOKEN.findall, decode_errors="replace")


def load(
    *, vocab_size: int, sequence_length: int, validation_examples: int, seed: int, cache_dir: str | None = None
) -> Dataset:
    """Returns windows of the standard library's source. About 5 % of the library's files are used for validation.

    `vocab_size` is in words, `sequence_length` is in words per window, and `validation_examples` is in windows. Raises
    DataError if the library has no source files on disk or the cache cannot be written, and ConfigError if a size is
    out of range.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = find_files(root, suffix=".py", skipped_folders={"site-packages", "dist-packages", "__pycache__"})
    if not files:
        raise DataError(f"{root}: found no .py files of the standard library. Use data=text with data.path=FILE.")
    corpus = load_corpus(files, tokenizer=PYTHON_SOURCE, vocab_size=vocab_size, cache_dir=cache_dir, source=str(root))
    return language_model_dataset(
        corpus,
        sequence_length=sequence_length,
        validation_examples=validation_examples,
        seed=seed,
        source=str(root),
    )
