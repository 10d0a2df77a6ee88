"""How the work of servers is shared, were variables on them: what the busiest one has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.plan.comm_options import PsOptions
from parallax_runner.planning.cost.constants import Constants
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.planning.placement import place, served_bytes


@dataclass(frozen=True)
class ServerLoad:
    """Of all that servers have to do for variables of a kind, the share of the server with most to do (of a missing
    kind, an equal share); and into how many shards each variable is cut, which travel each for itself. Of kinds that
    are placed together it is the share of both: what variables cost by it adds up to what the busiest server does."""

    busiest_share: Mapping[GradientKind, float] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        variables: Sequence[VariableInfo],
        servers: int,
        measured: Measured | None,
        constants: Constants,
        *,
        together: bool,
        ps: PsOptions | None = None,
    ) -> ServerLoad:
        """Of variables with their numbers of pieces (`planning/cut.py`), placed as a plan would place them: all
        `together`, as comm=ps does, or each kind as if servers had nothing else."""
        servers, per_byte, ps = max(1, servers), _secs_per_byte(constants), ps or PsOptions()
        kinds = (GradientKind.DENSE, GradientKind.SPARSE)
        movable = [one for one in variables if one.gradient in kinds and one.immovable_op is None]
        groups = [movable] if together else [[one for one in movable if one.gradient is kind] for kind in kinds]
        shares: dict[GradientKind, float] = {}
        shards: dict[str, int] = {}
        for group in groups:
            placed = place(group, servers, measured, ps)
            shards |= {name: len(own) for name, own in placed.items()}
            secs = [0.0] * servers
            for variable in group:
                own = placed[variable.name]
                for shard, size_bytes in zip(own, served_bytes(variable, own, measured, ps), strict=True):
                    secs[shard.server] += per_byte[variable.gradient] * size_bytes
            if any(secs):
                shares |= dict.fromkeys((one.gradient for one in group), max(secs) / sum(secs))
        return cls(shares, shards)


def _secs_per_byte(constants: Constants) -> dict[GradientKind, float]:
    """What a byte keeps a server busy that half the time leaves it and half the time comes: its link, adding, and of
    rows looking up and updating them. By it servers are compared."""
    dense_secs = (constants.pull.secs_per_byte + constants.push.secs_per_byte + constants.server_secs_per_byte) / 2
    of_rows_secs = (constants.apply_dense_secs_per_byte + constants.apply_sparse_secs_per_byte) / 2
    return {GradientKind.DENSE: dense_secs, GradientKind.SPARSE: dense_secs + of_rows_secs}
