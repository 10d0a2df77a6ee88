"""Whether a process of a file is still running: other processes with its pid, other boots, other hosts."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from parallax_runner.process import identity
from parallax_runner.process.identity import Life, ProcessIdentity

HERE = ProcessIdentity.of_this_process()


def test_this_process_is_alive() -> None:
    assert HERE.life() is Life.ALIVE
    assert HERE.is_here


def test_the_ticks_are_those_of_the_process_itself() -> None:
    """Its name may contain what separates the fields."""
    code = "import sys; open('/proc/self/comm', 'w').write(') R 1 (x'); print(sys.stdin.read())"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    found = identity._stat_of(process.pid)
    assert found is not None and found[1] >= HERE.start_ticks
    process.communicate()
    assert identity._stat_of(process.pid) is None


@pytest.mark.parametrize(
    ("changed", "life"),
    [
        ({"start_ticks": HERE.start_ticks + 1}, Life.ENDED),
        ({"boot_id": "another boot"}, Life.ENDED),
        ({"host": "another", "boot_id": "another boot"}, Life.UNKNOWN),
        ({"host": "another", "pid": 1}, Life.UNKNOWN),  # a container of the same machine
        ({"host": "an earlier name of this machine"}, Life.ALIVE),
        ({"pid": 2**22}, Life.ENDED),
    ],
)
def test_others(changed: dict[str, object], life: Life) -> None:
    assert dataclasses.replace(HERE, **changed).life() is life  # type: ignore[arg-type]


def test_a_zombie_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    stat = identity._stat_of(process.pid)
    while stat is not None and stat[0] != "Z":
        stat = identity._stat_of(process.pid)
    assert stat is not None
    zombie = dataclasses.replace(HERE, pid=process.pid, start_ticks=stat[1])
    assert zombie.life() is Life.ENDED
    process.wait()
