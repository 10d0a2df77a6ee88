"""How the work of servers is shared, were variables on them: what the busiest one has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.plan.measured import Measured
from parallax_runner.plan.placement import place, served_bytes


@dataclass(frozen=True)
class ServerLoad:
    """Of all bytes that servers give and take for variables of a kind, the busiest one's share (of a missing kind, an
    equal share); and into how many shards each variable is cut, which travel each for itself. Two kinds need not be
    busiest on one server: what their costs add up to is a bound."""

    busiest_share: Mapping[GradientKind, float] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, variables: Sequence[VariableInfo], servers: int, measured: Measured | None, *, together: bool
    ) -> ServerLoad:
        """Of variables with their numbers of pieces (`plan/cut.py`), placed as a plan would place them: all `together`,
        as comm=ps does, or each kind as if servers had nothing else."""
        servers = max(1, servers)
        kinds = {
            kind: [variable for variable in variables if variable.gradient is kind]
            for kind in (GradientKind.DENSE, GradientKind.SPARSE)
        }
        groups = [[*kinds[GradientKind.DENSE], *kinds[GradientKind.SPARSE]]] if together else list(kinds.values())
        shares: dict[GradientKind, float] = {}
        shards: dict[str, int] = {}
        for group in groups:
            placed = place(group, servers, measured)
            shards |= {name: len(own) for name, own in placed.items()}
            served = {kind: [0.0] * servers for kind in kinds}
            for variable in group:
                own = placed[variable.name]
                for shard, size_bytes in zip(own, served_bytes(variable, own, measured), strict=True):
                    served[variable.gradient][shard.server] += size_bytes
            shares |= {kind: max(loads) / sum(loads) for kind, loads in served.items() if any(loads)}
        return cls(shares, shards)
