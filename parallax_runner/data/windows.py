"""Converts token arrays to a dataset for language models, which predict the next word at each position of a window."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.dataset import Dataset
from parallax_runner.data.tokens import LINES_PER_BLOCK, Corpus
from parallax_runner.errors import ConfigError, DataError, Setting


def language_model_dataset(
    corpus: Corpus,
    *,
    sequence_length: int,
    validation_examples: int,
    seed: int,
    source: str,
    validation_source: str | None = None,
) -> Dataset:
    """Returns windows of the corpus with the features `words` and `next_words`, both int32 [sequence_length].

    Window i consists of tokens i * sequence_length to (i + 1) * sequence_length, inclusive, so each token is predicted
    once. At most `validation_examples` windows of the validation tokens are used, evenly spaced.

    Raises ConfigError if a length or count is out of range, and DataError if the corpus has no window to train on.
    `source` names the text in the error message, and `validation_source` the validation text if it is another one.
    """
    if sequence_length < 1:
        raise ConfigError("expected at least 1 word.").about(Setting.of("data.sequence_length", sequence_length))
    if validation_examples < 0:
        raise ConfigError("expected 0 (no validation) or more.").about(
            Setting.of("data.validation_examples", validation_examples)
        )
    train = cut_windows(corpus.train, sequence_length)
    if len(train) == 0:
        raise DataError(
            f"{source}: {len(corpus.train)} tokens to train on, but one example needs "
            f"{sequence_length + 1}. Provide more text or lower data.sequence_length."
        )
    validation = spread(cut_windows(corpus.validation, sequence_length), validation_examples)
    why_missing = _why_missing(corpus, sequence_length, source, validation_source)
    return ArrayDataset(
        train={"words": train[:, :-1], "next_words": train[:, 1:]},
        validation={"words": validation[:, :-1], "next_words": validation[:, 1:]},
        words_per_example=sequence_length,
        seed=seed,
        train_file=corpus.train_file,
        validation_file=corpus.validation_file,
        numbering=_digest(corpus.vocabulary),
        digest=corpus.train_digest,
        missing_validation="" if not validation_examples or len(validation) else why_missing,
    )


def _why_missing(corpus: Corpus, sequence_length: int, source: str, validation_source: str | None) -> str:
    """Returns the reason why the corpus has no window for validation."""
    found = f"has {len(corpus.validation)} tokens, but one example needs {sequence_length + 1}"
    if validation_source is not None:
        return f"the text at data.validation_path={validation_source} {found}"
    return (
        f"the validation part of {source} {found}. A single file of up to {LINES_PER_BLOCK} lines is not divided, so "
        "it has no validation part. Set data.validation_path, or divide the text into more lines"
    )


def _digest(vocabulary: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(vocabulary).encode()).hexdigest()[:32] if vocabulary else ""


def cut_windows(tokens: np.ndarray, sequence_length: int) -> np.ndarray:
    """Returns windows [n, sequence_length + 1] of `tokens` [t] as a view. Adjacent windows share one token."""
    if len(tokens) <= sequence_length:
        return np.empty((0, sequence_length + 1), tokens.dtype)
    return np.lib.stride_tricks.sliding_window_view(tokens, sequence_length + 1)[::sequence_length]


def spread(examples: np.ndarray, count: int) -> np.ndarray:
    """Returns `count` evenly spaced rows of `examples`, or all rows if there are fewer than `count`."""
    count = min(count, len(examples))
    return examples[np.arange(count) * len(examples) // max(count, 1)]
