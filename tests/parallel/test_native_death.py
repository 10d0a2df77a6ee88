"""A killed rank, without the driver, which would end the others: tests/parallel/native_death.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.parallel.native_death import PATIENCE_SECS
from tests.parallel.native_launch import END_SECS, started

SCRIPT = Path(__file__).with_name("native_death.py")
RANKS = 3
# mpirun ends all ranks when one is killed, unless MPI tolerates faults.
SURVIVE = ("--with-ft", "ulfm")


def test_those_who_wait_for_a_killed_rank_name_it_and_the_exchange(tmp_path: Path) -> None:
    """Also in the next exchange: none waits for a deadline."""
    folder = tmp_path / "ranks"
    with started(SCRIPT, RANKS, folder, SURVIVE) as process:
        _, errors = process.communicate(timeout=END_SECS)
    files = [folder / f"rank_{rank}.json" for rank in range(RANKS)]
    assert [file.exists() for file in files] == [True, True, False], errors[-4000:]
    for file in files[:-1]:
        found = json.loads(file.read_text())
        assert found["secs"] < PATIENCE_SECS
        in_its_exchange, in_the_next = found["said"]
        assert in_its_exchange.startswith("AbortedError") and in_the_next.startswith("AbortedError")
        assert "exchange «orphan»: MPI_Improbe: MPI_ERR_PROC_FAILED" in in_its_exchange
        assert re.search(f"nothing has come from rank {RANKS - 1}$", in_its_exchange, re.M)
        assert "exchange «orphan»: MPI_Improbe: MPI_ERR_PROC_FAILED" in in_the_next
