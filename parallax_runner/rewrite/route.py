"""The rewriting half of a route."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_runner.rewrite.rewrite_pass import RewritePass


@dataclass(frozen=True)
class RouteRewriting:
    """What rewriting asks a route: its passes, by when they run (rewrite/passes.py has the whole order), and whether a
    read of its variables needs all ranks.

    `exchange` passes replace gradients by those of all ranks. `place` passes move variables away from the ranks that
    had them whole, and redirect reads: they set `Rewrite.placements`, and a placement makes the pieces that checkpoints
    read and restore. `update` passes run the update of placed variables where they are; behind them nothing may use a
    variable where it was. `after` passes run when the step is complete.

    `needs_all_ranks`: a read of its variables is a collective, so that ranks vote on it.
    """

    exchange: tuple[RewritePass, ...] = ()
    place: tuple[RewritePass, ...] = ()
    update: tuple[RewritePass, ...] = ()
    after: tuple[RewritePass, ...] = ()
    needs_all_ranks: bool = False
