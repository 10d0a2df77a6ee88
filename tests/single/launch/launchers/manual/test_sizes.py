"""How many workers there are, if their number may change."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from parallax_runner.errors import LaunchError
from parallax_runner.launch.launchers.manual.claims import Claims
from parallax_runner.launch.launchers.manual.manual_launcher import Manual
from parallax_runner.launch.launchers.resizable import ResizableLauncher
from tests.single.launch.launchers.manual.test_manual import (
    StandsBy,
    address,
    never,
    redis_port,
    stands_by,
    store,
    wait_until,
)

__all__ = ["address", "redis_port", "stands_by", "store"]
NUMBERS = (1, 2, 4)
SECS = 20.0


def largest(claims: Claims, *, servers: int = 0, wait_secs: float = 0.0, timeout_secs: float = SECS) -> int:
    return claims.gather_largest(
        "runs/1", NUMBERS, servers, wait_secs=wait_secs, timeout_secs=timeout_secs, stopped=never
    )


def test_the_largest_number_of_workers_that_are_there(address: str, stands_by: StandsBy) -> None:
    for id in "abc":
        stands_by(id)
    claims = Claims(address)
    assert largest(claims) == 2
    assert len(claims.in_order({"worker": 2})["worker"]) == 2
    stands_by("d")
    assert largest(claims, wait_secs=SECS) == 4, "all are there, so it does not wait"


def test_it_waits_for_more_workers_than_the_smallest_number(address: str, stands_by: StandsBy) -> None:
    for id in "abc":
        stands_by(id)
    late = threading.Timer(1.0, stands_by, "d")
    late.start()
    assert largest(Claims(address), wait_secs=SECS) == 4
    late.join()


def test_a_server_is_waited_for_too(address: str, stands_by: StandsBy) -> None:
    for id in "abcd":
        stands_by(id)
    with pytest.raises(LaunchError, match=r"missing after 0\.3 s .*: server 0; registered: worker"):
        largest(Claims(address), servers=1, timeout_secs=0.3)


def test_too_few_workers_are_named(address: str) -> None:
    with pytest.raises(LaunchError, match=r"missing after 0\.3 s .*: worker 0; no process has registered"):
        largest(Claims(address), timeout_secs=0.3)


def test_numbers_of_users_are_an_order(address: str, stands_by: StandsBy) -> None:
    for made in (("a", "worker", 3), ("b", "worker"), ("c", "worker", 1)):
        stands_by(*made)
    claims = Claims(address)
    assert largest(claims) == 2
    assert [claim.entry.id for claim in claims.in_order({"worker": 3})["worker"]] == ["c", "a", "b"]


def test_processes_that_have_ended_or_leave_do_not_count(address: str, stands_by: StandsBy) -> None:
    standing = [stands_by(id) for id in "abcd"]
    claims = Claims(address)
    assert largest(claims) == 4
    first, second, *_ = claims.in_order({"worker": 4})["worker"]
    first.channel.close()
    assert largest(claims) == 2
    leaving = next(one for one in standing if one.entry.id == second.entry.id)
    leaving._serving = 1
    threading.Thread(target=leaving.leave, args=[SECS], daemon=True).start()
    wait_until(lambda: claims.leaves_in_secs(second) is not None)
    assert largest(claims) == 2
    assert second.entry.id not in {claim.entry.id for claim in claims.in_order({"worker": 2})["worker"]}
    leaving.over.set()


def test_new_workers_are_noticed_while_others_run(address: str, stands_by: StandsBy) -> None:
    for id in "ab":
        stands_by(id)
    claims = Claims(address)
    assert largest(claims) == 2
    assert not claims.has_more("runs/1", NUMBERS, 0, 2)
    stands_by("c")
    assert not claims.has_more("runs/1", NUMBERS, 0, 2), "no number has three workers"
    stands_by("d")
    assert claims.has_more("runs/1", NUMBERS, 0, 2)
    assert not claims.has_more("runs/1", NUMBERS, 0, 4)


def test_the_launcher_asks_for_its_own_servers(address: str, stands_by: StandsBy, tmp_path: Path) -> None:
    launcher = Manual(address, 0.3, str(tmp_path), 2, 1, is_elastic=True)
    assert isinstance(launcher, ResizableLauncher)
    for id in "ab":
        stands_by(id)
    with pytest.raises(LaunchError, match="server 0"):
        launcher.available(NUMBERS, 0.0, never)
    stands_by("c", "server")
    assert launcher.available(NUMBERS, 0.0, never) == 2
    assert not launcher.has_more(NUMBERS, 2)
    launcher.check([], never)
    assert {role: len(claims) for role, claims in launcher._claimed.items()} == {"worker": 2, "server": 1}
