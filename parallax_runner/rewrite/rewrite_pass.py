"""Declares which parts of the state a pass reads and writes, and checks the order of passes against these
declarations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from parallax_runner.errors import ParallaxError
from parallax_runner.rewrite.rewrite_state import FROM_THE_START, GIVEN, Rewrite

FIELDS = frozenset(field.name for field in dataclasses.fields(Rewrite)) - GIVEN


class PassOrderError(ParallaxError):
    """Passes cannot run in this order. This is a bug in the passes, not in the model."""


@dataclass(frozen=True)
class RewritePass:
    """One pass over the state of a replica.

    `reads` and `writes` name fields of `Rewrite`, other than the constant fields (`GIVEN`), and fields of the state of
    the pass's route, such as "PsState.pushes". A pass that only adds to a field counts as a writer of the field, not as
    a reader.
    """

    run: Callable[[Rewrite], None]
    reads: frozenset[str]
    writes: frozenset[str]

    def __post_init__(self) -> None:
        self.refuse_unknown(name for name in self.reads | self.writes if "." not in name)

    def __call__(self, rewrite: Rewrite) -> None:
        self.run(rewrite)

    def check_state(self, state: type | None) -> None:
        """Raises PassOrderError if the pass declares a field that the state of its route does not have."""
        known = set() if state is None else {f"{state.__name__}.{one.name}" for one in dataclasses.fields(state)}
        self.refuse_unknown(name for name in self.reads | self.writes if "." in name and name not in known)

    def refuse_unknown(self, names: Iterable[str]) -> None:
        """Raises PassOrderError for names that are no fields that passes change."""
        unknown = sorted(set(names) - FIELDS)
        if unknown:
            raise PassOrderError(
                f"pass {self.name} declares {', '.join(unknown)}, expected fields of Rewrite that passes change"
            )

    @property
    def name(self) -> str:
        """The name of the pass's function."""
        return self.run.__name__


def rewrite_pass(
    *, reads: Sequence[str] = (), writes: Sequence[str] = ()
) -> Callable[[Callable[[Rewrite], None]], RewritePass]:
    """Turns a function into a pass."""
    return lambda run: RewritePass(run, frozenset(reads), frozenset(writes))


def check_order(passes: Sequence[RewritePass]) -> None:
    """Raises PassOrderError if a pass reads a field before another pass writes it.

    A pass may read a field if an earlier pass writes it and no later pass writes it. A pass that both reads and writes
    a field may come between other passes that write the field. Fields that have a value before the first pass may be
    read at any time.
    """
    for place, one in enumerate(passes):
        before = {name for other in passes[:place] for name in other.writes}
        missing = sorted(one.reads - one.writes - before - FROM_THE_START)
        if missing:
            raise PassOrderError(f"pass {one.name} reads {', '.join(missing)}, which no earlier pass writes")
        for later in passes[place + 1 :]:
            late = sorted((one.reads - one.writes - FROM_THE_START) & later.writes)
            if late:
                raise PassOrderError(
                    f"pass {one.name} reads {', '.join(late)}, which the later pass {later.name} writes"
                )
