"""The names of a backend's ops, for tests that count what a step exchanges."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExchangeOps:
    """The types of TensorFlow ops of a backend. `every` is the beginning of all types."""

    every: str
    sum: str
    gather: str
    all_to_all: str

    def is_in(self, label: str) -> bool:
        """Returns whether the label «name = Type(inputs)» of a trace is an exchange."""
        return label.partition(" = ")[2].startswith(self.every)


OPS = {
    "native": ExchangeOps("Parallax", "ParallaxSum", "ParallaxGather", "ParallaxAllToAll"),
    "horovod": ExchangeOps("Horovod", "HorovodGroupedAllreduce", "HorovodAllgather", "HorovodAlltoall"),
}
