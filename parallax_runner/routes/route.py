"""The interface between a route and planning. The cost model, the planner, the tables and the calibration use this
interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.plan.comm_options import CommOptions, Lookahead
from parallax_runner.plan.plan import Plan, VariablePlan
from parallax_runner.planning.cost.constants import Exchange
from parallax_runner.planning.cost.touched import Touched
from parallax_runner.planning.cost.traffic import Traffic, traffic
from parallax_runner.routes.traits import RouteTraits

if TYPE_CHECKING:
    from parallax_runner.planning.cost.model import CostModel


class Paid(NamedTuple):
    """The time in seconds that one variable adds to a step.

    The time is spent on the busiest link, on waiting for messages, and on processing received data. `before_secs` is
    the part of the sum that is spent before the values are available. `aside_secs` is the part that is spent during the
    previous step.
    """

    link_secs: float
    latency_secs: float
    work_secs: float
    before_secs: float = 0.0
    aside_secs: float = 0.0


class PaidOnce(NamedTuple):
    """The fixed time in seconds that a route adds to each step, regardless of the number of variables.

    `before_secs` is spent before the values are available, `after_secs` is spent after the gradients are available, and
    `aside_secs` is spent during the previous step.
    """

    before_secs: float = 0.0
    after_secs: float = 0.0
    aside_secs: float = 0.0

    @property
    def secs(self) -> float:
        """The total number of seconds."""
        return self.before_secs + self.after_secs + self.aside_secs


# Maps the number of ranks, the bytes that each rank passes on, and the number of servers to the number of message
# rounds and the bytes on the busiest link.
Volume = Callable[[int, int, int], tuple[int, float]]


class Route(RouteTraits, ABC):
    """A way to exchange the gradients of variables, and a place for the variables' values.

    `routes/traits.py` finds routes by name.

    Attributes, besides those of RouteTraits:
        rewriting: the dotted name of the module whose `REWRITING` contains the passes. Only the rewrite imports this
            module. The name is empty if there is nothing to rewrite.
        exchanges: the exchanges from `Constants` that the route uses, with their volumes. A calibration measures these
            exchanges.
        has_owners: whether each row has an owner that serves and updates the row.
        asks_ahead: whether rows can be requested from their owners during the previous step.
        grows: whether a vocabulary can grow on this route, because its passes ask the owners of new keys for rows.
        kept_gradient: the kind of gradient that takes this route if every rank must keep the whole variable.
        sends_whole: whether the number of bytes is known even if the number of touched rows is unknown.
        all_of_it: the name that a plan's table uses for all exchanges on this route.
    """

    rewriting: ClassVar[str]
    exchanges: ClassVar[Mapping[str, Volume]] = {}
    has_owners: ClassVar[bool] = False
    asks_ahead: ClassVar[bool] = False
    grows: ClassVar[bool] = False
    kept_gradient: ClassVar[GradientKind | None] = None
    sends_whole: ClassVar[bool] = False
    all_of_it: ClassVar[str] = ""

    @abstractmethod
    def takes(self, variable: VariableInfo, *, servers: int) -> bool:
        """Returns whether the variable can take this route in a cluster with this number of servers."""

    @abstractmethod
    def sent_bytes(self, parts: Traffic, workers: int) -> float:
        """Returns the number of bytes that each rank sends per step."""

    @abstractmethod
    def paid(self, model: CostModel, variable: VariableInfo, touched: Touched, parts: Traffic) -> Paid:
        """Returns the costs of the variable if `touched` rows are exchanged, excluding the costs that are paid once."""

    def paid_once(self, model: CostModel, variables: Sequence[VariableInfo]) -> PaidOnce:
        """Returns the costs that are paid once for all variables on the route, whose exchanges are in flight
        together. There is at least one such variable."""
        return PaidOnce()

    @abstractmethod
    def reason(self, variable: VariableInfo) -> str:
        """Returns one sentence that states why a preset chooses this route."""

    def traffic(self, variable: VariableInfo, touched: Touched, options: CommOptions) -> Traffic:
        """Returns the traffic between a rank and the variable's owners if `touched` rows are exchanged."""
        return traffic(variable, touched, options.compression)

    def is_ahead(self, variable: VariableInfo, options: CommOptions) -> bool:
        """Returns whether the rows of a variable on this route are requested during the previous step."""
        if not self.asks_ahead or options.lookahead is Lookahead.OFF:
            return False
        return variable.gradient is GradientKind.SPARSE and variable.unknown_ahead is None

    def lengths_vary(self, plan: Plan) -> bool:
        """Returns whether ranks exchange tensors whose lengths change from step to step."""
        return False

    def may_fuse(self, plan: Plan) -> bool:
        """Returns whether an exchange is faster if the backend fuses this route's tensors with other tensors."""
        return False

    def place(self, variable: VariablePlan, workers: int) -> str:
        """Returns the location of the values, for a plan's table."""
        return "every rank" if workers > 1 else "the worker"


def waiting_secs(exchange: Exchange, rounds: int) -> float:
    """Returns the waiting time for exchanges that are in flight together."""
    return exchange.overhead_secs + rounds * exchange.latency_secs
