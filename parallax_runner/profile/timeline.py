"""The timeline of one step: which ops ran in one rank's session, and when."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallax_runner.files.regular import open_regular
from parallax_runner.profile.op_classes import OpClass, class_of, is_collective, is_push

# «[cpu 1.2MB 0.5MB] name = Type(inputs)»: the memory use comes first if it is large.
_LABEL = re.compile(r"(?:\[[^\]]*\] ?)*(?P<name>.*?) = (?P<type>\w+)\(.*", re.DOTALL)
# «[768B] [45.8Mb/s] edge_311_NAME from DEVICE to DEVICE»
_TRANSFER = re.compile(
    r"\[(?P<bytes>\d+)B\] \[[^\]]*\] (?:edge_\d+_)?(?P<name>.*) from (?P<sender>\S+) to \S+", re.DOTALL
)
_DEVICE = re.compile(r"/job:(?P<job>\w+)(?:/replica:\d+)?/task:(?P<task>\d+)/(?:device:)?(?P<device>.+)")
_SERVER_JOB = "ps"


@dataclass(frozen=True, order=True)
class Process:
    """A worker, identified by its rank, or a server. Workers sort before servers."""

    is_server: bool
    index: int

    def __str__(self) -> str:
        return f"{'server' if self.is_server else 'worker'} {self.index}"


@dataclass(frozen=True, slots=True)
class Op:
    """One execution of an op on `device` (like `CPU:0`) of a process.

    Times are in ns since 1970, from the process's own clock. `sent_bytes` and `sender` are set for a transfer between
    processes. The `name` of a transfer is the name of the op whose output is sent.
    """

    name: str
    type: str
    op_class: OpClass
    process: Process
    device: str
    start_ns: int
    end_ns: int
    sent_bytes: int | None = None
    sender: str | None = None

    @property
    def is_collective(self) -> bool:
        """Whether the op is a collective."""
        return is_collective(self.type, self.name)

    @property
    def is_push(self) -> bool:
        """Whether the op sends a gradient of this rank to a server."""
        return is_push(self.type)


@dataclass(frozen=True)
class StepTimeline:
    """All ops that one rank's session ran in a step, on the rank and on servers, sorted by start time."""

    rank: int
    step: int
    ops: tuple[Op, ...]

    @property
    def start_ns(self) -> int:
        """The time when the first op started."""
        return self.ops[0].start_ns

    @functools.cached_property
    def end_ns(self) -> int:
        """The time when the last op ended."""
        return max(op.end_ns for op in self.ops)


def read_timeline(path: Path, *, rank: int, step: int) -> StepTimeline:
    """Reads a file that a rank has written. Raises ValueError if the file is not RunMetadata or contains no ops."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorflow.core.protobuf import config_pb2

    metadata = config_pb2.RunMetadata()
    with open_regular(path) as file:
        content = file.read()
    try:
        metadata.ParseFromString(content)
    except DecodeError as error:
        raise ValueError(f"{path} is not RunMetadata: {error}") from error
    return timeline_of(metadata, rank=rank, step=step)


def timeline_of(run_metadata: Any, *, rank: int, step: int) -> StepTimeline:
    """Returns the timeline from a RunMetadata. Raises ValueError if it contains no ops."""
    ops = sorted(_ops(run_metadata, rank), key=lambda op: (op.start_ns, op.end_ns))
    if not ops:
        raise ValueError(f"the trace of step {step} on worker {rank} contains no ops")
    return StepTimeline(rank=rank, step=step, ops=tuple(ops))


def _ops(run_metadata: Any, rank: int) -> Iterator[Op]:
    for stats in run_metadata.step_stats.dev_stats:
        if stats.device.endswith("/stream:all"):  # repeats the ops of all of a GPU's streams
            continue
        process, device = _place(stats.device, rank)
        for node in stats.node_stats:
            if node.node_name != "_SOURCE":  # a node of the executor itself
                yield _op(node, process, device)


def _place(full_name: str, rank: int) -> tuple[Process, str]:
    """Returns the process and the device from a device's full name. In a session without a cluster, the session's own
    process is named `localhost`."""
    match = _DEVICE.fullmatch(full_name)
    if match is None:
        return Process(is_server=False, index=rank), full_name.strip("/")
    is_own = match["job"] == "localhost"
    return Process(match["job"] == _SERVER_JOB, rank if is_own else int(match["task"])), match["device"]


def _op(node: Any, process: Process, device: str) -> Op:
    """Returns the op with the time in its kernel, without the executor's overhead before and after."""
    start_ns = node.all_start_nanos or node.all_start_micros * 1000
    end_ns = start_ns + (node.op_end_rel_nanos or node.op_end_rel_micros * 1000)
    start_ns = min(start_ns + (node.op_start_rel_nanos or node.op_start_rel_micros * 1000), end_ns)
    sent_bytes = sender = None
    if node.node_name == "RecvTensor":
        op_type, name = "RecvTensor", node.timeline_label
        if (match := _TRANSFER.fullmatch(node.timeline_label)) is not None:
            name, sent_bytes = match["name"], int(match["bytes"])
            sender = " ".join(map(str, _place(match["sender"], 0)))
    elif (match := _LABEL.fullmatch(node.timeline_label)) is not None:
        name, op_type = match["name"], match["type"]
    else:  # a kernel on a GPU's stream is named «name:Type»
        name, _, op_type = node.node_name.partition(":")
        op_type = op_type or "unknown"
    return Op(name, op_type, class_of(op_type, name), process, device, start_ns, end_ns, sent_bytes, sender)
