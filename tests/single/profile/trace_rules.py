"""What the Trace Event Format asks of a file of duration and metadata events, as far as viewers insist on it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

METADATA = {"process_name": str, "thread_name": str, "process_sort_index": int, "thread_sort_index": int}


def check_trace(trace: dict[str, Any]) -> None:
    """Every event has its fields, of the right kind; durations of one lane do not overlap."""
    durations: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str), event
        assert event["ph"] in ("X", "M"), event
        assert all(isinstance(event[key], int) for key in ("pid", "tid")), event
        assert isinstance(event["ts"], int | float), event
        assert isinstance(event["args"], dict), event
        if event["ph"] == "X":
            assert isinstance(event["dur"], int | float) and event["dur"] >= 0, event
            durations[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
        else:
            (value,) = event["args"].values()
            assert isinstance(value, METADATA[event["name"]]), event
    assert durations
    for lane in durations.values():
        for (start, duration), (following, _) in itertools.pairwise(sorted(lane)):
            assert start + duration <= following + 1e-3, lane  # a nanosecond is lost in writing


def processes(trace: dict[str, Any]) -> dict[int, str]:
    """Names by pid, in the order in which they are shown."""
    named = {event["pid"]: event["args"]["name"] for event in _metadata(trace, "process_name")}
    order = {event["pid"]: event["args"]["sort_index"] for event in _metadata(trace, "process_sort_index")}
    return {pid: named[pid] for pid in sorted(named, key=order.__getitem__)}


def lanes(trace: dict[str, Any]) -> dict[str, list[str]]:
    """Names of the lanes of each process, in the order in which they are shown."""
    named = {(event["pid"], event["tid"]): event["args"]["name"] for event in _metadata(trace, "thread_name")}
    order = {
        (event["pid"], event["tid"]): event["args"]["sort_index"] for event in _metadata(trace, "thread_sort_index")
    }
    return {
        name: [named[lane] for lane in sorted(named, key=order.__getitem__) if lane[0] == pid]
        for pid, name in processes(trace).items()
    }


def _metadata(trace: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "M" and event["name"] == name]
