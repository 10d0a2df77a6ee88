"""The samples that a calibration measures on ranks, and that the fit uses."""

from __future__ import annotations

from dataclasses import dataclass

EXCHANGE_BYTES = (4_096, 65_536, 524_288, 4_194_304, 16_777_216)
# Numbers of tensors in flight together, each of the smallest size. A plan's alltoalls are always one tensor.
TENSORS = (8, 32)
# (rows, width) of float32 updates.
UPDATES = ((256, 16), (256, 256), (4096, 16), (4096, 64), (4096, 256))
# Numbers of distinct ids, among twice as many ids.
ASKED = (256, 4096, 16_384)
REPEATS = 12
WARM_UP = 3


@dataclass(frozen=True)
class Sample:
    """The seconds of one exchange or of one piece of work. In an exchange, `ranks` ranks pass on `bytes` each, in
    `tensors` tensors at once, among themselves or to `servers` servers. Work is on `rows` rows of `bytes` in all (0
    rows for a whole tensor)."""

    kind: str
    ranks: int
    bytes: int
    rows: int
    secs: float
    servers: int = 1
    tensors: int = 1
