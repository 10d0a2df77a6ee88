"""The distribution of work over servers if variables were on them."""

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
    """The load of the busiest server.

    `busiest_share` is the fraction of all servers' work, by kind of gradient, that the busiest server has; a missing
    kind is shared equally. `shards` is the number of shards of each variable, which are sent separately. If both kinds
    are placed together, both have the same `busiest_share`, a fraction of their total work, so that the costs of
    variables add up to the work of the busiest server.
    """

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
        """Returns the load of variables with their numbers of pieces (`planning/cut.py`), placed as in a plan.

        All are placed `together`, as comm=ps does, or each kind as if servers held nothing else.
        """
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
    """Returns the seconds of a server per byte, for comparing servers. Half the bytes leave it and half arrive; the
    time covers its link, summing, and lookups and updates of rows."""
    dense_secs = (constants.pull.secs_per_byte + constants.push.secs_per_byte + constants.server_secs_per_byte) / 2
    of_rows_secs = (constants.apply_dense_secs_per_byte + constants.apply_sparse_secs_per_byte) / 2
    return {GradientKind.DENSE: dense_secs, GradientKind.SPARSE: dense_secs + of_rows_secs}
