"""The alltoall route: each rank owns some rows of a variable, and ids and rows are sent between ranks and owners."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.plan.plan import Plan, VariablePlan
from parallax_runner.planning.cost.touched import Touched
from parallax_runner.planning.cost.traffic import ID_BYTES, OWNED_ID_BYTES, Traffic
from parallax_runner.routes.route import Paid, PaidOnce, Route, Volume, waiting_secs

if TYPE_CHECKING:
    from parallax_runner.planning.cost.model import CostModel


class Alltoall(Route):
    """An exchange between ranks and the owners of rows. Row i belongs to rank i mod ranks."""

    name = "alltoall"
    rewriting = "parallax_runner.routes.alltoall.rewriting"
    exchanges: ClassVar[Mapping[str, Volume]] = {
        "alltoall": lambda ranks, size, _: (ranks - 1, size * (ranks - 1) / ranks)
    }
    is_collective = True
    needs_all_ranks = True
    has_owners = True
    asks_ahead = True
    grows = True
    all_of_it = "all alltoalls"

    def takes(self, variable: VariableInfo, *, servers: int) -> bool:
        """Returns true for a variable that has a sparse gradient and can be moved."""
        return variable.gradient is GradientKind.SPARSE and variable.immovable_op is None

    def traffic(self, variable: VariableInfo, touched: Touched, options: CommOptions) -> Traffic:
        """Adds a byte per row if lookahead is on. In this byte, owners report whether a row is sent before the
        step."""
        parts = super().traffic(variable, touched, options)
        if not self.is_ahead(variable, options):
            return parts
        return dataclasses.replace(parts, pulled=parts.pulled + parts.ids)

    def sent_bytes(self, parts: Traffic, workers: int) -> float:
        """Returns the number of bytes that a rank sends to other ranks."""
        return both_ways_bytes(parts) * (workers - 1) / workers

    def paid(self, model: CostModel, variable: VariableInfo, touched: Touched, parts: Traffic) -> Paid:
        """Returns the costs. Owners look up rows and sort them by requesting rank. Gradients are sorted by owner."""
        cluster, exchange = model.cluster, model.constants.alltoall
        leaves = 1 - cluster.on_a_host / cluster.workers
        link = both_ways_bytes(parts) * cluster.on_a_host * leaves * exchange.secs_per_byte
        asking, copying = touched.distinct * model.constants.ask_secs_per_row, model.copy_secs(2 * parts.pulled)
        applying = model.apply_secs(variable, touched.merged / cluster.workers)
        merging = model.copy_secs(parts.pushed) + parts.pushed * model.constants.merge_secs_per_byte
        # Rows and their gradients have the same number of bytes, while a request has only 4 bytes per row.
        fetching, before, aside = link / 2 + copying, asking + link / 2 + copying, 0.0
        if self.is_ahead(variable, model.options):
            before, aside = fetching * (1 - touched.apart_share), asking + fetching * touched.apart_share
        return Paid(link, 0.0, asking + copying + applying + merging, before, aside)

    def paid_once(self, model: CostModel, variables: Sequence[VariableInfo]) -> PaidOnce:
        """Returns the costs of three alltoalls: one for ids and one for rows before the forward pass, and one for
        gradients after the backward pass.

        If rows are requested in advance, the ids, the owners' answers and the early rows are sent during the previous
        step, and only the late rows are sent before the forward pass.
        """
        workers = model.cluster.workers
        if workers == 1:
            return PaidOnce()
        once_secs = waiting_secs(model.constants.alltoall, workers - 1)
        ahead = [variable for variable in variables if self.is_ahead(variable, model.options)]
        if not ahead:
            return PaidOnce(2 * once_secs, once_secs)
        before = 1 if len(ahead) == len(variables) else 2
        return PaidOnce(before * once_secs, once_secs, 3 * once_secs)

    def reason(self, variable: VariableInfo) -> str:
        """Returns the reason as one sentence."""
        if variable.grows:
            return "the vocabulary grows, so the ranks own its keys and rows"
        return "sparse: only the rows that a step touches are sent, to and from the ranks that own them"

    def lengths_vary(self, plan: Plan) -> bool:
        """Returns true, because lengths depend on the rows that a step touches."""
        return True

    def place(self, variable: VariablePlan, workers: int) -> str:
        """Returns how rows are assigned to the ranks that own them."""
        return f"rank = row mod {workers}"


def both_ways_bytes(parts: Traffic) -> float:
    """Returns the number of bytes that a rank exchanges with all owners, including itself. Ids are sent once, in 32
    bits."""
    return parts.pulled + parts.pushed - parts.ids * (ID_BYTES - OWNED_ID_BYTES)


ROUTE = Alltoall()
