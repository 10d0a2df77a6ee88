"""WikiText-2 with `model=lm`: trained on its validation file, which is small, and tested on its test file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from benchmarks.results.experiment import Experiment
from parallax_runner.data import text

TRAIN, TEST = "valid.txt", "test.txt"
VOCAB_SIZE = 10_000
SEQUENCE_LENGTH = 20  # words
TEST_EXAMPLES = 2048  # windows, evenly spaced in the test file


def baseline(data: Path, files: Path) -> dict[str, float]:
    """Returns the numbers of words, and the perplexity on the same test words of a model that knows only how frequent
    each word is in the training text (one is added to each count)."""
    dataset = text.load(
        path=str(data / TRAIN),
        validation_path=str(data / TEST),
        vocab_size=VOCAB_SIZE,
        sequence_length=SEQUENCE_LENGTH,
        validation_examples=TEST_EXAMPLES,
        seed=0,
        cache_dir=str(files / "cache"),
    )
    trained = dataset.train_batch(0, dataset.train_size)["next_words"]
    tested = dataset.validation_batch(0, dataset.validation_size)["next_words"]
    counts = 1 + np.bincount(trained.ravel(), minlength=VOCAB_SIZE)
    log_shares = np.log(counts / counts.sum())
    perplexity = math.exp(-log_shares[tested].mean())
    return {"train_words": trained.size, "test_words": tested.size, "unigram_perplexity": perplexity}


def _experiment(name: str, *settings: str) -> Experiment:
    return Experiment(
        name=name,
        data=f"a folder with {TRAIN} and {TEST} of WikiText-2",
        settings=(
            *("model=lm", "data=text", f"data.path={{data}}/{TRAIN}", f"data.validation_path={{data}}/{TEST}"),
            *(f"data.vocab_size={VOCAB_SIZE}", f"data.sequence_length={SEQUENCE_LENGTH}"),
            *(f"data.validation_examples={TEST_EXAMPLES}", "data.cache_dir={files}/cache"),
            *settings,
        ),
        global_batch=64,
        steps=400,
        measure_steps=80,
        recorded="validation/perplexity",
        metric="perplexity",
        prepare=baseline,
    )


# The sampled softmax draws words for each worker, so two workers draw others than one device. The full softmax draws
# nothing.
EXPERIMENTS = (_experiment("language"), _experiment("language_full_softmax", "model.num_sampled=null"))
