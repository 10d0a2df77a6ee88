"""Checks the rules by which keys get rows and lose them, as a user gives them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from parallax_runner.errors import ConfigError

EXAMPLES = {"admit": '{"min_count": 3}', "evict": '{"unused_steps": 10000, "every_steps": 1000}'}


class Rules(NamedTuple):
    """The rules of a table, with the names and meanings of `MapShape`."""

    min_count: int = 1
    unused_steps: int = 0
    every_steps: int = 0

    @property
    def admit(self) -> dict[str, int] | None:
        """The argument `admit` with this meaning."""
        return {"min_count": self.min_count} if self.min_count > 1 else None

    @property
    def evict(self) -> dict[str, int] | None:
        """The argument `evict` with this meaning."""
        return {"unused_steps": self.unused_steps, "every_steps": self.every_steps} if self.every_steps else None


def rules_of(admit: Mapping[str, int] | None, evict: Mapping[str, int] | None) -> Rules:
    """Returns the rules of the arguments. Raises ConfigError if one is wrong."""
    admitted = {"min_count": 1} if admit is None else _checked("admit", admit, {"min_count"}, ())
    if evict is None:
        return Rules(admitted["min_count"])
    evicted = _checked("evict", evict, {"unused_steps"}, {"every_steps"})
    unused_steps = evicted["unused_steps"]
    return Rules(admitted["min_count"], unused_steps, evicted.get("every_steps", unused_steps))


def _checked(
    argument: str, given: Mapping[str, int], needed: Collection[str], possible: Collection[str]
) -> dict[str, int]:
    is_whole = isinstance(given, Mapping) and set(needed) <= set(given) <= {*needed, *possible}
    if not is_whole or not all(_is_count(number) for number in given.values()):
        raise ConfigError(
            f"GrowingEmbedding: {argument}={given!r}, expected whole numbers from 1 on, such as {EXAMPLES[argument]}"
        )
    return {name: int(number) for name, number in given.items()}


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 1 <= number < 2**31
