"""Open MPI reads our rules: sums of a ring are rounded in another order than those of its default algorithm."""

from __future__ import annotations

import os
import subprocess
import sys

from parallax_runner.launch.hosts import Hosts, Place
from parallax_runner.launch.mpirun.command import ALLOW_ROOT, SHARE_CORES, YIELD_WHEN_IDLE, find_mpirun
from parallax_runner.launch.mpirun.over_hosts import mpi_environment

RANKS = 4
SIZES_BYTES = (256 * 1024, 512 * 1024)  # below the bound for 4 ranks, and at it
PRINT_SUMS = f"""
import hashlib
import numpy as np
from mpi4py import MPI

for size in {SIZES_BYTES}:
    own = np.random.default_rng(MPI.COMM_WORLD.rank).normal(size=size // 4).astype(np.float32)
    total = np.empty_like(own)
    MPI.COMM_WORLD.Allreduce(own, total)
    if MPI.COMM_WORLD.rank == 0:
        print(hashlib.sha256(total.tobytes()).hexdigest())
"""


def sums(env: dict[str, str]) -> list[str]:
    """Returns a fingerprint of the sums of each size."""
    command = [find_mpirun(), "-np", str(RANKS), *YIELD_WHEN_IDLE, *SHARE_CORES, sys.executable, "-c", PRINT_SUMS]
    ended = subprocess.run(command, env=os.environ | ALLOW_ROOT | env, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_large_messages_go_by_a_ring_and_others_by_open_mpis_own_way() -> None:
    places = tuple(Place(f"host{number}", 1, is_here=False) for number in range(RANKS))
    own_way = sums({"OMPI_MCA_coll": "^han"})
    by_rules = sums(mpi_environment(Hosts(places, "ssh", "10.0.0.1", None), frozenset()))
    forced = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_allreduce_algorithm": "4"}
    by_ring = sums({"OMPI_MCA_coll": "^han"} | forced)
    assert all(one != other for one, other in zip(own_way, by_ring, strict=True))
    assert by_rules == [own_way[0], by_ring[1]]
