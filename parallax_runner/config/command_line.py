"""Adds words to a command line, which is given as a list of words."""

from collections.abc import Sequence


def with_more(words: Sequence[str], overrides: Sequence[str], more: Sequence[str]) -> list[str]:
    """Returns the command line with `more` inserted after its `overrides`, because argparse needs all overrides next to
    each other."""
    count = len(overrides)
    places = [place for place in range(count, len(words) + 1) if list(words[place - count : place]) == list(overrides)]
    place = places[0] if count else len(words)
    return [*words[:place], *more, *words[place:]]
