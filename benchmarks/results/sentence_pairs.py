"""Multi30k as arrays of word ids: words are lower-case letters and digits, or one other sign."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

SOURCE, TARGET = "en", "de"
TRAIN, TEST = "train", "test_2016_flickr"
PADDING, UNKNOWN, BEGIN, END = range(4)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
VOCAB_SIZE = 3000
# Words of a sentence with BEGIN or END. Longer training pairs are left out, and longer test sources are cut.
LENGTH = 16
WORD = re.compile(r"\w+|[^\w\s]")


def words_of(path: Path) -> list[list[str]]:
    """Returns the words of each line of a file, plain or `.gz`."""
    packed = path.with_name(f"{path.name}.gz")
    content = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    text = content.decode("utf-8")
    return [WORD.findall(line.lower()) for line in text.removesuffix("\n").split("\n")]


def vocabulary_of(sentences: Iterable[Sequence[str]]) -> list[str]:
    """Returns at most VOCAB_SIZE words: the special ones, then the most frequent first."""
    counts = Counter(word for sentence in sentences for word in sentence)
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return [*SPECIAL, *ordered[: VOCAB_SIZE - len(SPECIAL)]]


def ids_of(sentences: Sequence[Sequence[str]], vocabulary: Sequence[str]) -> list[list[int]]:
    """Returns the ids of the words."""
    number = {word: place for place, word in enumerate(vocabulary)}
    return [[number.get(word, UNKNOWN) for word in sentence] for sentence in sentences]


def padded(sentences: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns int32 [sentences, LENGTH]. Longer sentences are cut."""
    made = np.full((len(sentences), LENGTH), PADDING, np.int32)
    for row, sentence in zip(made, sentences, strict=True):
        kept = sentence[:LENGTH]
        row[: len(kept)] = kept
    return made


def write_files(data: Path, files: Path) -> None:
    """Writes the vocabularies, and the arrays of the training and of the test pairs."""
    read = {
        (part, language): words_of(data / f"{part}.{language}")
        for part in (TRAIN, TEST)
        for language in (SOURCE, TARGET)
    }
    vocabularies = {language: vocabulary_of(read[TRAIN, language]) for language in (SOURCE, TARGET)}
    for language, vocabulary in vocabularies.items():
        (files / f"vocabulary.{language}").write_text("\n".join(vocabulary), encoding="utf-8")
    for part in (TRAIN, TEST):
        sources, targets = (ids_of(read[part, language], vocabularies[language]) for language in (SOURCE, TARGET))
        fitting = [
            place
            for place, (source, target) in enumerate(zip(sources, targets, strict=True))
            if len(source) <= LENGTH and len(target) < LENGTH
        ]
        arrays = {
            "source": padded([sources[place] for place in fitting]),
            "target": padded([[BEGIN, *targets[place]] for place in fitting]),
            "next_words": padded([[*targets[place], END] for place in fitting]),
        }
        np.savez(files / f"{part}.npz", **arrays)
    np.save(files / "test_sources.npy", padded(ids_of(read[TEST, SOURCE], vocabularies[SOURCE])))


def read_vocabulary(files: Path, language: str) -> list[str]:
    """Returns the words by their ids."""
    return (files / f"vocabulary.{language}").read_text(encoding="utf-8").split("\n")


def load(*, path: str, source_size: int, target_size: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the training and the test pairs: `source`, `target` and `next_words`, int32 [pairs, LENGTH].

    Raises ValueError if a vocabulary has more words than the model.
    """
    for language, size in ((SOURCE, source_size), (TARGET, target_size)):
        found = len(read_vocabulary(Path(path), language))
        if found > size:
            raise ValueError(f"the vocabulary of {language} has {found} words: expected at most {size}")
    train, test = (dict(np.load(Path(path) / f"{part}.npz")) for part in (TRAIN, TEST))
    return train, test
