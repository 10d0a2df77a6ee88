"""What a calibration measures: the noun between ranks and the fit."""

from __future__ import annotations

from dataclasses import dataclass

EXCHANGE_BYTES = (4_096, 65_536, 524_288, 4_194_304, 16_777_216)
# So many tensors in flight together, of the smallest size each; a plan's alltoalls are one, whatever they carry.
TENSORS = (8, 32)
# (rows, width) of float32 updates.
UPDATES = ((256, 16), (256, 256), (4096, 16), (4096, 64), (4096, 256))
# Distinct ids among twice as many.
ASKED = (256, 4096, 16_384)
REPEATS = 12
WARM_UP = 3


@dataclass(frozen=True)
class Sample:
    """Seconds of one thing: an exchange of `ranks` ranks that hand over `bytes` each, in `tensors` tensors at once,
    among themselves or with `servers` servers; or work on `rows` rows that are `bytes` in all (0 rows for work on a
    whole tensor)."""

    kind: str
    ranks: int
    bytes: int
    rows: int
    secs: float
    servers: int = 1
    tensors: int = 1
