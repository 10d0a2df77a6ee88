"""A run says which tables it must read as a whole from its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_runner.checkpoints.checkpoint_files import Sidecar, sidecar_path
from parallax_runner.driver.restore_memory import whole_tables_note
from tests.single.small_models import captured, lookup_model, planned

ROWS = 2_000_000  # of two float64


def note(tmp_path: Path, comm: str, *, partitions: int = 1, rows: int = ROWS, **block_rows: int) -> str | None:
    single = captured(lambda features: lookup_model(features, rows=rows))
    start = tmp_path / "model.ckpt-1"
    sidecar = Sidecar(step=1, examples=1, seed=1, fingerprint="f", tracker_run_id=None, block_rows=block_rows)
    sidecar_path(start).write_text(sidecar.text())
    return whole_tables_note(planned(single, comm, partitions=partitions), single, start)


@pytest.mark.parametrize(("comm", "who"), [("sharded", "each worker"), ("ps", "worker 0")])
def test_a_table_that_is_whole_in_the_checkpoint_is_named(comm: str, who: str, tmp_path: Path) -> None:
    told = note(tmp_path, comm, partitions=2)
    assert told is not None
    assert f"contains «table» as a whole, so {who} needs memory for all of it (32 MB)" in told


def test_nothing_is_told_without_need(tmp_path: Path) -> None:
    assert note(tmp_path, "sharded", table=1000) is None
    assert note(tmp_path, "sharded", rows=1000) is None
    assert note(tmp_path, "ps") is None  # the table is on one server
    assert note(tmp_path, "mpi") is None
