"""Sentences become ids and words again, and the baselines are those of the test part."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks.results import language, sentence_pairs, translation

LONG = " ".join(["man"] * 30)
SENTENCES = {
    "train.en": ["A man.", "A dog runs!", LONG],
    "train.de": ["Ein Mann.", "Ein Hund läuft!", LONG],
    "test_2016_flickr.en": ["A cat runs.", LONG],
    "test_2016_flickr.de": ["Eine Katze läuft.", LONG],
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with two files of each kind, packed or not."""
    for number, (name, lines) in enumerate(SENTENCES.items()):
        text = ("\n".join(lines) + "\n").encode()
        if number % 2:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text))
        else:
            (tmp_path / name).write_bytes(text)
    return tmp_path


def test_pairs_that_are_too_long_are_left_out_of_the_training_only(data: Path, tmp_path: Path) -> None:
    facts = translation.prepare(data, tmp_path)
    assert (facts["train_pairs"], facts["test_pairs"]) == (2, 2)
    assert np.load(tmp_path / "test_sources.npy").shape == (2, sentence_pairs.LENGTH)


def test_ids_stand_for_the_words(data: Path, tmp_path: Path) -> None:
    translation.prepare(data, tmp_path)
    train, test = sentence_pairs.load(path=str(tmp_path), source_size=3000, target_size=3000)
    words = sentence_pairs.read_vocabulary(tmp_path, "de")
    assert [words[number] for number in train["target"][1][:6]] == ["<s>", "ein", "hund", "läuft", "!", "<pad>"]
    assert [words[number] for number in train["next_words"][1][:6]] == ["ein", "hund", "läuft", "!", "</s>", "<pad>"]
    assert [words[number] for number in test["next_words"][0][:5]] == ["<unk>", "<unk>", "läuft", ".", "</s>"]


def test_a_vocabulary_that_is_too_large_is_refused(data: Path, tmp_path: Path) -> None:
    translation.prepare(data, tmp_path)
    with pytest.raises(ValueError, match="the vocabulary of de has 11 words: expected at most 5"):
        sentence_pairs.load(path=str(tmp_path), source_size=3000, target_size=5)


def test_the_unigram_baseline_is_computed_on_the_test_words(tmp_path: Path) -> None:
    (tmp_path / "valid.txt").write_text("a a a b\n" * 30)
    (tmp_path / "test.txt").write_text("a b\n" * 40)
    facts = language.baseline(tmp_path, tmp_path)
    # Of 150 tokens, 90 are «a», 30 are «b» and 30 end a line. A window predicts all tokens but the first.
    assert facts["train_words"] == 140
    assert facts["test_words"] == 100
    counts = {"a": 84, "b": 28, "end": 28}
    total = sum(counts.values()) + language.VOCAB_SIZE
    test = {"a": 33, "b": 34, "end": 33}
    mean = sum(share * np.log((counts[word] + 1) / total) for word, share in test.items()) / 100
    assert facts["unigram_perplexity"] == pytest.approx(np.exp(-mean), rel=0.01)
