"""The interface of a route for planning. The cost model, the planner, tables and calibration use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.plan.plan import Plan, VariablePlan
from parallax_runner.planning.cost.constants import Constants, Exchange
from parallax_runner.planning.cost.touched import Touched
from parallax_runner.planning.cost.traffic import Traffic, traffic

if TYPE_CHECKING:
    from parallax_runner.planning.cost.model import CostModel


class Paid(NamedTuple):
    """Seconds of a step for one variable: on the busiest link, waiting for messages, and processing received data. Of
    the sum, `before_secs` are spent before the values are available."""

    link_secs: float
    latency_secs: float
    work_secs: float
    before_secs: float = 0.0


class PaidOnce(NamedTuple):
    """Seconds of a step that a route takes once, for any number of variables: before the values are available, and
    after the gradients are."""

    before_secs: float = 0.0
    after_secs: float = 0.0

    @property
    def secs(self) -> float:
        """The sum of both."""
        return self.before_secs + self.after_secs


# Maps the number of ranks, bytes that each rank passes on, and the number of servers to rounds of messages and bytes on
# the busiest link.
Volume = Callable[[int, int, int], tuple[int, float]]


class Route(ABC):
    """A way to exchange the gradients of variables, and a place for their values. `planning/routes/registry.py` finds
    it.

    Attributes:
        name: the name in plans, tables and `comm.routes`.
        rewriting: the dotted name of the module whose `REWRITING` has the passes; only rewriting imports it. Empty if
            there is nothing to rewrite.
        exchanges: the exchanges of `Constants` that it uses, with their volumes; a calibration measures these.
        is_collective: whether ranks exchange data among themselves by Horovod.
        on_servers: whether values are on servers.
        has_owners: whether each row has an owner that serves and updates it. A plan has at most one kind of owner.
        asks_ahead: whether rows can be requested from owners during the previous step.
        sends_whole: whether the bytes are known even if the number of touched rows is not.
        all_of_it: the name for all exchanges of this route in a plan's table.
    """

    name: ClassVar[str]
    rewriting: ClassVar[str]
    exchanges: ClassVar[Mapping[str, Volume]] = {}
    is_collective: ClassVar[bool] = False
    on_servers: ClassVar[bool] = False
    has_owners: ClassVar[bool] = False
    asks_ahead: ClassVar[bool] = False
    sends_whole: ClassVar[bool] = False
    all_of_it: ClassVar[str] = ""

    @abstractmethod
    def takes(self, variable: VariableInfo, *, servers: int) -> bool:
        """Returns whether the variable may take this route in a cluster with this number of servers."""

    @abstractmethod
    def sent_bytes(self, parts: Traffic, workers: int) -> float:
        """Returns the bytes per step and rank."""

    @abstractmethod
    def paid(self, model: CostModel, variable: VariableInfo, touched: Touched, parts: Traffic) -> Paid:
        """Returns the costs of the variable if `touched` rows are exchanged, without the costs that are paid once."""

    def paid_once(self, constants: Constants, workers: int) -> PaidOnce:
        """Returns the costs that are paid once for all variables of the route, which are in flight together."""
        return PaidOnce()

    @abstractmethod
    def reason(self, variable: VariableInfo) -> str:
        """Returns one sentence on why a preset takes this route."""

    def traffic(self, variable: VariableInfo, touched: Touched, options: CommOptions) -> Traffic:
        """Returns what a rank exchanges with the variable's owners if `touched` rows are exchanged."""
        return traffic(variable, touched, options.compression)

    def lengths_vary(self, plan: Plan) -> bool:
        """Returns whether Horovod exchanges tensors whose length differs from step to step."""
        return False

    def may_fuse(self, plan: Plan) -> bool:
        """Returns whether Horovod is faster if it fuses this route's tensors with others."""
        return False

    def place(self, variable: VariablePlan, workers: int) -> str:
        """Returns where the values are, for a plan's table."""
        return "every rank" if workers > 1 else "the worker"


def waiting_secs(exchange: Exchange, rounds: int) -> float:
    """Returns the waiting time of exchanges that are in flight together."""
    return exchange.overhead_secs + rounds * exchange.latency_secs
