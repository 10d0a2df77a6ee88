"""What planning must know of a route. The cost model, the planner, tables and calibration ask it."""

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
    """Seconds of a step that one variable takes: on the busiest link, waiting for messages, and working on what came.
    `before_secs` of all three come before there are values to compute with."""

    link_secs: float
    latency_secs: float
    work_secs: float
    before_secs: float = 0.0


class PaidOnce(NamedTuple):
    """Seconds of a step that a route takes however many variables take it: before there are values to compute with,
    and when there are gradients."""

    before_secs: float = 0.0
    after_secs: float = 0.0

    @property
    def secs(self) -> float:
        """Both."""
        return self.before_secs + self.after_secs


# Of ranks, bytes that each hands over, and servers: rounds of messages, and bytes on the busiest link.
Volume = Callable[[int, int, int], tuple[int, float]]


class Route(ABC):
    """A way for the gradients of variables, and a place for their values. `planning/routes/registry.py` finds it.

    Attributes:
        name: as plans, tables and `comm.routes` have it.
        rewriting: the dotted name of the module whose `REWRITING` has the passes; only rewriting imports it. Empty
            where there is nothing to rewrite.
        exchanges: the exchanges of `Constants` by which it costs, and their volumes: a calibration measures these.
        is_collective: whether ranks exchange something among themselves, by Horovod.
        on_servers: whether values live on servers.
        has_owners: whether each row has an owner that asks and answers. A plan has one kind of owner, or none.
        asks_ahead: whether owners can be asked for rows while the step before runs.
        sends_whole: whether the bytes are known though nobody knows how many rows a step touches.
        all_of_it: what a plan's table calls all exchanges of this route together.
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
        """Whether the variable may take this route in a cluster of so many servers."""

    @abstractmethod
    def sent_bytes(self, parts: Traffic, workers: int) -> float:
        """Bytes a step and rank."""

    @abstractmethod
    def paid(self, model: CostModel, variable: VariableInfo, touched: Touched, parts: Traffic) -> Paid:
        """What the variable costs, if `touched` rows travel, beside what is paid once."""

    def paid_once(self, constants: Constants, workers: int) -> PaidOnce:
        """What is paid once for all variables of the route: they are in flight together."""
        return PaidOnce()

    @abstractmethod
    def reason(self, variable: VariableInfo) -> str:
        """Why a preset takes it: one sentence for people."""

    def traffic(self, variable: VariableInfo, touched: Touched, options: CommOptions) -> Traffic:
        """What a rank exchanges with the owners of the variable, if `touched` rows travel."""
        return traffic(variable, touched, options.compression)

    def lengths_vary(self, plan: Plan) -> bool:
        """Whether Horovod exchanges tensors that have another length in each step."""
        return False

    def may_fuse(self, plan: Plan) -> bool:
        """Whether Horovod does better by fusing this route's tensors with others."""
        return False

    def place(self, variable: VariablePlan, workers: int) -> str:
        """Where values are, for a plan's table."""
        return "every rank" if workers > 1 else "the worker"


def waiting_secs(exchange: Exchange, rounds: int) -> float:
    """What exchanges in flight together wait for."""
    return exchange.overhead_secs + rounds * exchange.latency_secs
