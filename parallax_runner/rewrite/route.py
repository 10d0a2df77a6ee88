"""The rewriting part of a route."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_runner.rewrite.rewrite_pass import RewritePass


@dataclass(frozen=True)
class RouteRewriting:
    """The passes of a route, grouped by when they run.

    rewrite/passes.py defines the order of all passes. `exchange` passes replace gradients with the gradients of all
    ranks. Until the `place` passes run, each rank holds whole variables. `place` passes distribute variables over
    servers or ranks, redirect reads, and set `Rewrite.placements`. A placement creates the pieces that checkpoints read
    and restore. `update` passes make the update of placed variables run where the variables are. After these passes, no
    op of the step may use the original handle of a placed variable. `after` passes run when the graph of the step is
    complete.
    """

    exchange: tuple[RewritePass, ...] = ()
    place: tuple[RewritePass, ...] = ()
    update: tuple[RewritePass, ...] = ()
    after: tuple[RewritePass, ...] = ()
