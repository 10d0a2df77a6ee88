"""What is made of RunMetadata when a run has ended."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from parallax_runner.config.schema import ProfileConfig
from parallax_runner.profile import end_of_run
from parallax_runner.profile.end_of_run import summarize_profile
from parallax_runner.profile.run_metadata_files import DERIVED
from tests.single.profile.trace_rules import check_trace
from tests.single.profile.traced import SERVER, WORKER_0, WORKER_1, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two steps on two ranks."""
    for step in (4, 9):
        for rank, worker in enumerate((WORKER_0, WORKER_1)):
            write(
                tmp_path,
                (worker, "big", "MatMul", step * 10, step * 10 + 5),
                (worker, "small", "Add", step * 10 + 5, step * 10 + 6),
                (worker, "sum", "HorovodAllreduce", step * 10 + 6, step * 10 + 9),
                (SERVER, "take", "SparseAccumulatorTakeGradient", step * 10, step * 10 + 10),
                rank=rank,
                step=step,
            )
    return tmp_path


def summarized(folder: Path) -> str:
    said = summarize_profile(ProfileConfig(name="steps", dir=str(folder), steps=[4, 9]))
    assert said is not None
    return said


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_everything_is_made_and_one_line_says_so(folder: Path) -> None:
    assert summarized(folder) == (
        "profile of 2 steps: compute 60%, communication 30%, servers 0%, waiting 10%, idle 0%; "
        f"{folder / 'trace.json'} (opens in ui.perfetto.dev)"
    )
    assert {path.name for path in folder.iterdir()} == {*DERIVED, "worker_0", "worker_1"}
    check_trace(json.loads((folder / "trace.json").read_text()))
    assert (folder / "step_time.png").read_bytes().startswith(b"\x89PNG")


def test_the_heaviest_ops_come_first_and_waiting_ones_last(folder: Path) -> None:
    summarized(folder)
    table = rows(folder / "heaviest_ops.csv")
    assert [row["op"] for row in table] == ["big", "big", "sum", "sum", "small", "small", "take"]
    assert table[0] == {
        "op": "big",
        "type": "MatMul",
        "class": "compute",
        "process": "worker 0",
        "device": "CPU:0",
        "count": "2",
        "total_ms": "10.000000",
        "mean_ms": "5.000000",
        "share": f"{10 / 36:.6f}",
    }
    assert (table[-1]["process"], table[-1]["count"], table[-1]["share"]) == ("server 0", "4", "")
    assert sum(float(row["share"] or 0) for row in table) == pytest.approx(1, abs=1e-5)


def test_people_can_read_it(folder: Path) -> None:
    summarized(folder)
    text = (folder / "heaviest_ops.txt").read_text()
    for line in ("worker 1 │     2 │      10.000 │   60.0% │", "HorovodAllreduce", "Ops that only wait for others"):
        assert line in text, text
    assert text.index("MatMul") < text.index("HorovodAllreduce")


def test_shares_of_each_step_and_rank_are_a_table(folder: Path) -> None:
    summarized(folder)
    table = rows(folder / "shares.csv")
    assert [(row["step"], row["rank"]) for row in table] == [("4", "0"), ("4", "1"), ("9", "0"), ("9", "1")]
    assert table[3]["compute_ms"] == "6.000000" and table[3]["communication_ms"] == "3.000000"


def test_a_damaged_file_costs_its_rank_and_step_only(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "worker_1" / "run_meta_4.pb").write_bytes(b"\xff\xff")
    assert summarized(folder).startswith("profile of 2 steps: ")
    assert [(row["step"], row["rank"]) for row in rows(folder / "shares.csv")] == [("4", "0"), ("9", "0"), ("9", "1")]
    assert "run_meta_4.pb is not RunMetadata" in caplog.text


def test_a_run_that_came_to_no_such_step_says_so(tmp_path: Path) -> None:
    assert "no step was profiled" in summarized(tmp_path / "none")
    assert summarize_profile(ProfileConfig(name="off")) is None


def test_nothing_that_goes_wrong_fails_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(end_of_run, "write_text", fail)
    assert summarized(folder) == "the profile cannot be summarized: OSError: no space left on device"
