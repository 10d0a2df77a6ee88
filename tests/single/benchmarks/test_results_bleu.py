"""BLEU of a corpus."""

from __future__ import annotations

import math

import pytest

from benchmarks.results.bleu import bleu


def test_the_reference_itself_has_100() -> None:
    assert bleu([list("abcde"), list("fghij")], [list("abcde"), list("fghij")]) == pytest.approx(100.0)


def test_nothing_in_common_has_0() -> None:
    assert bleu([list("abcde")], [list("vwxyz")]) == 0.0
    assert bleu([[]], [list("vwxyz")]) == 0.0


def test_the_precisions_are_those_of_the_corpus() -> None:
    # Of the runs of 1, 2, 3 and 4 words, 5 of 6, 3 of 5, 2 of 4 and 1 of 3 are in the reference.
    found = bleu([list("abcdxf")], [list("abcdef")])
    assert found == pytest.approx(100 * math.exp(sum(map(math.log, (5 / 6, 3 / 5, 2 / 4, 1 / 3))) / 4))


def test_a_word_counts_at_most_as_often_as_in_the_reference() -> None:
    found = bleu([list("aaaabcd")], [list("zaabcde")])
    # 5 of 7 words, 4 of 6 pairs, 3 of 5 triples, 2 of 4 runs of four.
    assert found == pytest.approx(100 * math.exp(sum(map(math.log, (5 / 7, 4 / 6, 3 / 5, 2 / 4))) / 4))


def test_short_translations_are_penalized() -> None:
    assert bleu([list("abcd")], [list("abcdef")]) == pytest.approx(100 * math.exp(1 - 6 / 4))
