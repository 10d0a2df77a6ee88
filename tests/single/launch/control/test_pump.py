"""The driver looks at its processes however much they have to say."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from parallax_runner.launch.attempt import Attempt

PATIENCE_SECS = 20


def test_a_flood_of_messages_holds_up_nothing() -> None:
    looks: list[None] = []
    ends = time.monotonic() + PATIENCE_SECS

    def next_message(_: float) -> object:
        assert time.monotonic() < ends, "nobody looked at the processes"
        return object()

    attempt: Any = Attempt.__new__(Attempt)
    attempt._control = SimpleNamespace(next_message=next_message)
    attempt._take = lambda _: None
    attempt._look_at_processes = lambda: looks.append(None)
    attempt._look_at_clock = lambda: None
    attempt._on_tick = None
    assert attempt.pump(lambda: len(looks) == 2, timeout_secs=PATIENCE_SECS)
