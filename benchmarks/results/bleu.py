"""BLEU of a corpus, with one reference for each sentence (Papineni and others, 2002): no smoothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

LONGEST = 4  # words


def bleu(translations: Sequence[Sequence[Hashable]], references: Sequence[Sequence[Hashable]]) -> float:
    """Returns a number from 0 to 100."""
    precisions = [_precision(translations, references, length) for length in range(1, LONGEST + 1)]
    if min(precisions) == 0.0:
        return 0.0
    written, expected = (sum(map(len, sentences)) for sentences in (translations, references))
    brevity = min(0.0, 1.0 - expected / written)
    return 100.0 * math.exp(brevity + sum(map(math.log, precisions)) / LONGEST)


def _precision(
    translations: Sequence[Sequence[Hashable]], references: Sequence[Sequence[Hashable]], length: int
) -> float:
    """Returns the share of the translations' runs of `length` words that their references have."""
    found = total = 0
    for translation, reference in zip(translations, references, strict=True):
        written, expected = _runs(translation, length), _runs(reference, length)
        found += (written & expected).total()
        total += written.total()
    return found / total if total else 0.0


def _runs(words: Sequence[Hashable], length: int) -> Counter[tuple[Hashable, ...]]:
    return Counter(tuple(words[place : place + length]) for place in range(len(words) - length + 1))
