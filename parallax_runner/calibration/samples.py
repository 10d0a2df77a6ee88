"""The samples that a calibration measures on ranks, and from which the constants are fitted."""

from __future__ import annotations

from dataclasses import dataclass

EXCHANGE_BYTES = (4_096, 65_536, 524_288, 4_194_304, 16_777_216)
# Numbers of tensors that are in flight together. Each tensor has the smallest size. In a plan, an alltoall always has
# one tensor.
TENSORS = (8, 32)
# The sizes of the measured updates, as (number of rows, float32 values per row).
UPDATES = ((256, 16), (256, 256), (4096, 16), (4096, 64), (4096, 256))
# Numbers of distinct ids. The list of requested ids is twice as long.
ASKED = (256, 4096, 16_384)
REPEATS = 12
WARM_UP = 3


@dataclass(frozen=True)
class Sample:
    """The time in seconds of one exchange or of one piece of work.

    In an exchange, each of `ranks` ranks exchanges `bytes` bytes, in `tensors` tensors at the same time, with other
    ranks or with `servers` servers. A piece of work processes `rows` rows with a total of `bytes` bytes. `rows` is 0 if
    the work is done on a whole tensor.
    """

    kind: str
    ranks: int
    bytes: int
    rows: int
    secs: float
    servers: int = 1
    tensors: int = 1
