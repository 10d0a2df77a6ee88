"""The trace is what the viewers' format asks for, and nothing in it overlaps that must not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.profile.trace import writing_trace
from tests.single.profile.trace_rules import check_trace, lanes, processes
from tests.single.profile.traced import ORIGIN_NS, SERVER, WORKER_0, WORKER_1, timeline


def written(folder: Path) -> dict[str, Any]:
    with writing_trace(folder / "trace.json") as trace:
        for step, later in ((4, 0), (9, 100)):
            trace.add(
                [
                    timeline(
                        (worker, "a", "MatMul", later + 1, later + 3),
                        (worker, "b", "MatMul", later + 2, later + 4),
                        (worker, "c", "Add", later + 3, later + 3),
                        (worker, f"8 rows {SERVER}", "RecvTensor", later + 4, later + 5),
                        (SERVER, f"take {rank}", "SparseAccumulatorTakeGradient", later + rank / 2, later + 5),
                        rank=rank,
                        step=step,
                    )
                    for rank, worker in enumerate((WORKER_0, WORKER_1))
                ]
            )
    return json.loads((folder / "trace.json").read_text())


def test_it_keeps_the_rules_of_the_format(tmp_path: Path) -> None:
    check_trace(written(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_workers_and_servers_are_processes_and_have_lanes(tmp_path: Path) -> None:
    trace = written(tmp_path)
    assert list(processes(trace).values()) == ["worker 0", "worker 1", "server 0"]
    assert lanes(trace) == {
        "worker 0": ["steps", "CPU:0 compute", "CPU:0 compute (2)", "CPU:0 communication"],
        "worker 1": ["steps", "CPU:0 compute", "CPU:0 compute (2)", "CPU:0 communication"],
        "server 0": ["CPU:0 waiting for worker 0", "CPU:0 waiting for worker 1"],
    }


def test_times_are_microseconds_on_one_axis_from_the_first_op_on(tmp_path: Path) -> None:
    trace = written(tmp_path)
    assert trace["otherData"]["origin_ns_since_1970"] == ORIGIN_NS
    times = {
        (processes(trace)[event["pid"]], event["args"]["step"], event["args"].get("op")): (event["ts"], event["dur"])
        for event in trace["traceEvents"]
        if event["ph"] == "X"
    }
    assert times["worker 0", 4, "a"] == times["worker 1", 4, "a"] == (1000, 2000)
    assert times["worker 1", 9, "b"] == (102_000, 2000)
    assert times["server 0", 4, "take 1"] == (500, 4500)
    assert times["worker 1", 4, None] == (500, 4500)  # the step itself


def test_a_transfer_says_how_much_came_from_whom(tmp_path: Path) -> None:
    event = next(event for event in written(tmp_path)["traceEvents"] if event["name"] == "RecvTensor")
    assert event["args"] == {"op": "rows", "type": "RecvTensor", "step": 4, "bytes": 8, "from": "server 0 CPU:0"}
    assert event["cat"] == "communication"


def test_the_rules_can_be_broken() -> None:
    event = {"name": "a", "ph": "X", "ts": 0, "dur": 5, "pid": 1, "tid": 1, "args": {}}
    check_trace({"traceEvents": [event, event | {"ts": 5}]})
    for fault in ({"ts": "0"}, {"dur": -1}, {"ph": "Q"}, {"pid": None}, {"ts": 3}, {"name": 7}):
        with pytest.raises(AssertionError):
            check_trace({"traceEvents": [event, event | {"ts": 5} | fault]})


def test_an_error_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="on purpose"), writing_trace(tmp_path / "trace.json"):
        raise RuntimeError("on purpose")
    assert list(tmp_path.iterdir()) == []
