"""Passes say which parts of the state they read and write, and their order is checked against that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parallax_runner.errors import ParallaxError
from parallax_runner.rewrite.state import FROM_THE_START, GIVEN, Rewrite

FIELDS = frozenset(field.name for field in dataclasses.fields(Rewrite)) - GIVEN


class PassOrderError(ParallaxError):
    """Passes cannot run in this order: a fault of who wrote them, not of the model."""


@dataclass(frozen=True)
class RewritePass:
    """One pass over the state of a replica. `reads` and `writes` name fields of `Rewrite`; no pass names what it is
    given (`GIVEN`). A pass that adds to a field, and never looks at what is there, only writes it."""

    run: Callable[[Rewrite], None]
    reads: frozenset[str]
    writes: frozenset[str]

    def __post_init__(self) -> None:
        unknown = sorted((self.reads | self.writes) - FIELDS)
        if unknown:
            raise PassOrderError(f"pass {self.name}: the state has no {', '.join(unknown)} that a pass may write")

    def __call__(self, rewrite: Rewrite) -> None:
        self.run(rewrite)

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.run.__name__


def rewrite_pass(
    *, reads: Sequence[str] = (), writes: Sequence[str] = ()
) -> Callable[[Callable[[Rewrite], None]], RewritePass]:
    """Makes a pass of a function."""
    return lambda run: RewritePass(run, frozenset(reads), frozenset(writes))


def check_order(passes: Sequence[RewritePass]) -> None:
    """Raises PassOrderError where a pass reads a field before another writes it.

    That is: no pass has written it yet, or a later one writes it. A pass that writes a field too may stand between
    others that do. What is there from the start may be read at any time.
    """
    for place, one in enumerate(passes):
        before = {name for other in passes[:place] for name in other.writes}
        missing = sorted(one.reads - one.writes - before - FROM_THE_START)
        if missing:
            raise PassOrderError(f"pass {one.name} reads {', '.join(missing)}, which no pass before it writes")
        for later in passes[place + 1 :]:
            late = sorted((one.reads - one.writes - FROM_THE_START) & later.writes)
            if late:
                raise PassOrderError(f"pass {one.name} reads {', '.join(late)}, and {later.name} behind it writes that")
