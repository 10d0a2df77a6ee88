"""What a program of this folder makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Divisible by two and by three workers.
BATCH = 12


@dataclass(frozen=True)
class Program:
    """A compiled model, and the arguments of `fit`, with the data as `x` and, for arrays, `y`. `calls` is the number of
    calls of `fit`, all with the same arguments."""

    model: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)
    calls: int = 1
