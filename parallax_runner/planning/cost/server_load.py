"""Computes how work would be distributed over the servers if variables were on servers."""

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

    `busiest_share` is the fraction of all work that the busiest server does, by kind of gradient. If a kind is missing,
    its work is divided evenly among the servers. `shards` maps each variable to its number of shards, which are sent
    separately. If both kinds are placed together, both have the same `busiest_share`, which is a fraction of their
    total work. The costs of variables then add up to the work of the busiest server.
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
        """Returns the load if the variables are placed as in a plan.

        The numbers of pieces must already be set in the variables (`planning/cut.py`). If `together` is set, all
        variables are placed together, as with comm=ps. Otherwise each kind is placed as if servers held nothing else.
        """
        servers, per_byte, ps = max(1, servers), _secs_per_byte(constants), ps or PsOptions()
        shares: dict[GradientKind, float] = {}
        shards: dict[str, int] = {}
        for group in _groups(variables, together=together):
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


def _groups(variables: Sequence[VariableInfo], *, together: bool) -> list[list[VariableInfo]]:
    """Returns the variables that can be on servers, in the groups that are placed one by one."""
    kinds = (GradientKind.DENSE, GradientKind.SPARSE)
    movable = [one for one in variables if one.gradient in kinds and one.immovable_op is None and not one.grows]
    if together:
        return [movable]
    return [[one for one in movable if one.gradient is kind] for kind in kinds]


def _secs_per_byte(constants: Constants) -> dict[GradientKind, float]:
    """Returns a server's time per byte in seconds, by kind of gradient. The times are used only to compare servers.

    Half of the bytes leave the server, and the other half arrive at the server. The time covers the server's link,
    summing, and lookups and updates of rows.
    """
    dense_secs = (constants.pull.secs_per_byte + constants.push.secs_per_byte + constants.server_secs_per_byte) / 2
    of_rows_secs = (constants.apply_dense_secs_per_byte + constants.apply_sparse_secs_per_byte) / 2
    return {GradientKind.DENSE: dense_secs, GradientKind.SPARSE: dense_secs + of_rows_secs}
