"""The communication options: the fields in the config group `comm` that planning, the rewrite and workers need."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from parallax_runner.collectives.chosen import DEFAULT
from parallax_runner.config.schema import CommConfig


class Compression(StrEnum):
    """The format for sending floating-point values with more than 16 bits."""

    OFF = "off"
    FP16 = "fp16"
    BF16 = "bf16"


class Lookahead(StrEnum):
    """Whether rows of other ranks are requested one step in advance. `AUTO` requests them if workers are on several
    hosts, unless the cost model predicts that lookahead does not shorten the step."""

    AUTO = "auto"
    OFF = "off"
    ON = "on"


@dataclass(frozen=True)
class PsOptions:
    """Which work runs on servers, and which work runs on workers. The keys in `comm.ps` have the same names
    (docs/design/0022)."""

    local_aggregation: bool = True
    replicate_variables: bool = False
    boundary_among_servers: bool = True
    boundary_between_workers_and_servers: bool = True


@dataclass(frozen=True)
class CommOptions:
    """The communication options.

    Each field has the same name and meaning as its key in `comm`, `comm.mpi` or `comm.ps` (config/schema.py).

    Without `sync`, each replica applies its own gradients immediately. A replica can be at most `staleness` steps ahead
    of the slowest replica (None means no limit). `backup_workers` is the number of workers that a step does not wait
    for. `backend` is the name of what carries messages among ranks (collectives/chosen.py), never `auto`.
    """

    average_sparse: bool = True
    ps: PsOptions = PsOptions()
    use_allgatherv: bool = False
    compression: Compression = Compression.OFF
    sync: bool = True
    staleness: int | None = None
    backup_workers: int = 0
    lookahead: Lookahead = Lookahead.AUTO
    backend: str = DEFAULT

    @classmethod
    def of(cls, comm: CommConfig) -> CommOptions:
        """Returns the options from a configuration, with the default backend: the choice of a backend also depends on
        the cluster (driver/exchange_backend.py)."""
        return cls(
            average_sparse=comm.average_sparse,
            ps=PsOptions(**{option.name: getattr(comm.ps, option.name) for option in dataclasses.fields(PsOptions)}),
            use_allgatherv=comm.mpi.use_allgatherv,
            compression=Compression(comm.compression),
            sync=comm.sync,
            staleness=comm.ps.staleness,
            backup_workers=comm.ps.backup_workers,
            lookahead=Lookahead(comm.lookahead),
        )

    @classmethod
    def of_json(cls, fields: dict[str, Any]) -> CommOptions:
        """Returns the options from the result of `dataclasses.asdict`."""
        enums = {"compression": Compression(fields["compression"]), "lookahead": Lookahead(fields["lookahead"])}
        return cls(**fields | enums | {"ps": PsOptions(**fields["ps"])})

    @property
    def waits_for_all(self) -> bool:
        """Whether every step waits for all workers."""
        return self.sync and not self.backup_workers
