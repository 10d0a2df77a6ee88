"""How much of a conversion's CPU time numbers the strings: the dictionaries of blocks, their merge, and final codes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Self

from parallax_runner.data.table import encoded_block
from parallax_runner.data.table.local_codes import LocalCodes
from parallax_runner.data.table.string_merge import StringMerge

# None of these calls another one.
_FUNCTIONS: tuple[tuple[Any, str], ...] = (
    (encoded_block, "numbered"),
    (StringMerge, "add"),
    (StringMerge, "_merge"),
    (LocalCodes, "_final_codes"),
)


class Numbering:
    """Adds up the CPU time of these functions in all threads until the block ends."""

    def __init__(self) -> None:
        self.cpu_secs = 0.0
        self._lock = threading.Lock()
        self._originals: list[tuple[Any, str, Callable[..., Any]]] = []

    def __enter__(self) -> Self:
        for owner, name in _FUNCTIONS:
            original = getattr(owner, name)
            self._originals.append((owner, name, original))
            setattr(owner, name, self._timed(original))
        return self

    def __exit__(self, *_error: object) -> None:
        for owner, name, original in self._originals:
            setattr(owner, name, original)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                with self._lock:
                    self.cpu_secs += time.thread_time() - started

        return timed
