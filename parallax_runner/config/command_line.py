"""Adds to a command line, as a list of words."""

from collections.abc import Sequence


def with_more(words: Sequence[str], overrides: Sequence[str], more: Sequence[str]) -> list[str]:
    """A command line with `more` behind its `overrides`: argparse takes them from one place only, flags may follow."""
    count = len(overrides)
    places = [place for place in range(count, len(words) + 1) if list(words[place - count : place]) == list(overrides)]
    place = places[0] if count else len(words)
    return [*words[:place], *more, *words[place:]]
