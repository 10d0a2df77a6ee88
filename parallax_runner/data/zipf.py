"""Synthetic words, generated from a seed. As in natural language, few words are frequent, and most are rare."""

from __future__ import annotations

import numpy as np

from parallax_runner.data.dataset import Dataset
from parallax_runner.data.memory import check_fits
from parallax_runner.data.tokens import Corpus
from parallax_runner.data.windows import language_model_dataset
from parallax_runner.errors import ConfigError, Setting


def load(
    *,
    vocab_size: int,
    offset: float,
    sequence_length: int,
    examples: int,
    validation_examples: int,
    seed: int,
) -> Dataset:
    """Returns windows of independent words with the features `words` and `next_words`, both int32 [sequence_length].

    Word r, counted from 0, has a probability proportional to 1 / (r + 1 + offset), which is the Zipf-Mandelbrot law.
    Words with higher ids are therefore rarer, as a log-uniform candidate sampler expects. Raises ConfigError if an
    argument is out of range.
    """
    if vocab_size < 1:
        raise ConfigError("expected at least 1 word.").about(Setting.of("data.vocab_size", vocab_size))
    if offset < 0:
        raise ConfigError("expected 0 or more.").about(Setting.of("data.offset", offset))
    if examples < 1:
        raise ConfigError("expected at least 1 example to train on.").about(Setting.of("data.examples", examples))
    if validation_examples < 0:
        raise ConfigError("expected 0 (no validation) or more.").about(
            Setting.of("data.validation_examples", validation_examples)
        )
    if sequence_length < 1:
        raise ConfigError("expected at least 1 word.").about(Setting.of("data.sequence_length", sequence_length))
    check_fits(
        3 * 8 * (vocab_size + (examples + validation_examples) * sequence_length),
        vocab_size=vocab_size,
        sequence_length=sequence_length,
        examples=examples,
        validation_examples=validation_examples,
    )
    train, validation = np.random.SeedSequence(seed).spawn(2)
    return language_model_dataset(
        Corpus(
            draw_words(examples * sequence_length + 1, vocab_size, offset, train),
            draw_words(validation_examples * sequence_length + 1, vocab_size, offset, validation),
            vocabulary=(),
        ),
        sequence_length=sequence_length,
        validation_examples=validation_examples,
        seed=seed,
        source="data=zipf",
    )


def draw_words(count: int, vocab_size: int, offset: float, seed: np.random.SeedSequence) -> np.ndarray:
    """Returns word ids, int32 [count], which depend only on the arguments and not on the NumPy version."""
    weights = np.cumsum(1.0 / (np.arange(vocab_size) + 1.0 + offset))
    uniform = np.random.PCG64(seed).random_raw(count).astype(np.float64) / 2.0**64
    found = np.searchsorted(weights, uniform * weights[-1], side="right")
    words: np.ndarray = np.minimum(found, vocab_size - 1).astype(np.int32)
    return words
