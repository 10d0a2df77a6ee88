"""What the passes of the alltoall route hand to each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parallax_runner.routes.alltoall.known_ids import KnownIds
    from parallax_runner.routes.alltoall.lookahead_rows import Wave


@dataclass
class AlltoallState:
    """The state of one replica.

    `known_ids` lists the ids of rows that were looked up in variables that are spread over ranks. `waves` lists the
    lookups whose rows can be requested during the previous step.
    """

    known_ids: list[KnownIds] = field(default_factory=list)
    waves: list[Wave] = field(default_factory=list)
