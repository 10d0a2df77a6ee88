"""How many workers there are, if their number may change."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parallax_runner.config.worker_numbers import ClusterSize
from parallax_runner.errors import LaunchError
from parallax_runner.launch.launchers.manual.claimed_membership import ClaimedMembership
from parallax_runner.launch.launchers.manual.claims import Claims, Sizes
from parallax_runner.launch.launchers.manual.manual_launcher import Manual
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


def largest(claims: Claims, *, wait_secs: float = 0.0, timeout_secs: float = SECS) -> int:
    return sizes_of(claims, servers=0, wait_secs=wait_secs, timeout_secs=timeout_secs)[0]


def sizes_of(claims: Claims, *, servers: int, wait_secs: float = 0.0, timeout_secs: float = SECS) -> tuple[int, int]:
    sizes = Sizes(NUMBERS, servers)
    return claims.gather_largest("runs/1", sizes, wait_secs=wait_secs, timeout_secs=timeout_secs, stopped=never)


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


def test_a_run_with_servers_needs_one_of_them(address: str, stands_by: StandsBy) -> None:
    for id in "abcd":
        stands_by(id)
    claims = Claims(address)
    with pytest.raises(LaunchError, match=r"missing after 0\.3 s .*: server 0; registered: worker"):
        sizes_of(claims, servers=2, timeout_secs=0.3)
    stands_by("e", "server")
    assert sizes_of(claims, servers=2) == (4, 1)
    assert not claims.has_more("runs/1", Sizes(NUMBERS, 2), 4, 1)
    stands_by("f", "server")
    assert claims.has_more("runs/1", Sizes(NUMBERS, 2), 4, 1)
    assert sizes_of(claims, servers=2, wait_secs=SECS) == (4, 2), "all are there, so it does not wait"


def test_a_lost_server_is_replaced_if_another_one_comes_in_time(address: str, stands_by: StandsBy) -> None:
    for made in (("a", "worker"), ("b", "server"), ("c", "server")):
        stands_by(*made)
    claims = Claims(address)
    assert sizes_of(claims, servers=2) == (1, 2)
    claims.in_order({"server": 2})["server"][0].channel.close()
    late = threading.Timer(1.0, stands_by, ("d", "server"))
    late.start()
    assert sizes_of(claims, servers=2, wait_secs=3.0) == (1, 2)
    late.join()
    claims.in_order({"server": 2})["server"][0].channel.close()
    assert sizes_of(claims, servers=2, wait_secs=0.3) == (1, 1)


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
    assert not claims.has_more("runs/1", Sizes(NUMBERS, 0), 2, 0)
    stands_by("c")
    assert not claims.has_more("runs/1", Sizes(NUMBERS, 0), 2, 0), "no number has three workers"
    stands_by("d")
    assert claims.has_more("runs/1", Sizes(NUMBERS, 0), 2, 0)
    assert not claims.has_more("runs/1", Sizes(NUMBERS, 0), 4, 0)


def test_the_members_are_those_that_the_plan_has(address: str, stands_by: StandsBy, tmp_path: Path) -> None:
    for id in "ab":
        stands_by(id)
    cluster = SimpleNamespace(rendezvous=address, rendezvous_timeout_secs=0.3, servers=1)
    config: Any = SimpleNamespace(cluster=cluster, run_dir=str(tmp_path))
    plan: Any = SimpleNamespace(worker_numbers=NUMBERS, servers=1)
    members = Manual.membership(config, plan)
    assert isinstance(members, ClaimedMembership)
    with pytest.raises(LaunchError, match="server 0"):
        members.available(0.0, never)
    stands_by("c", "server")
    found = members.available(0.0, never)
    assert found == ClusterSize(2, 1) and not members.has_more(found)
    launcher = Manual(address, 0.3, str(tmp_path), 2, 1, is_elastic=True)
    launcher.check([], never)
    assert {role: len(claims) for role, claims in launcher._claimed.items()} == {"worker": 2, "server": 1}


def test_a_plan_without_servers_needs_none(address: str, stands_by: StandsBy, tmp_path: Path) -> None:
    stands_by("a")
    cluster = SimpleNamespace(rendezvous=address, rendezvous_timeout_secs=0.3, servers=3)
    config: Any = SimpleNamespace(cluster=cluster, run_dir=str(tmp_path))
    plan: Any = SimpleNamespace(worker_numbers=NUMBERS, servers=0)
    members = Manual.membership(config, plan)
    assert members.available(0.0, never) == ClusterSize(1, 3), "the size that the configuration has"
