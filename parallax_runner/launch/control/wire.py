"""The protocol between driver and children: one JSON object per line, over one TCP connection per child."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parallax_runner.collectives.backend import Awaited
from parallax_runner.launch.control.activity import Activity
from parallax_runner.launch.watch.whereabouts import Place

SHOWN_BYTES = 80

CONTROL_ADDRESS = "PARALLAX_CONTROL"
CONTROL_SECRET = "PARALLAX_CONTROL_SECRET"
# This variable contains the number of seconds between two heartbeats of a child.
ALIVE_SECS = "PARALLAX_ALIVE_SECS"
# This variable contains a number of seconds. If the heartbeat thread of a child cannot run for that long, the child
# writes its Python stacks to its log.
STACKS_SECS = "PARALLAX_STACKS_SECS"
# This variable contains a number of seconds. If the driver's machine leaves data unacknowledged for that long, a child
# on another machine treats the driver as lost.
SILENT_SECS = "PARALLAX_SILENT_SECS"
# The exit status of a child whose connection to the driver has ended. If the driver is alive to read it, the network
# has failed.
CUT_OFF_STATUS = 76  # EX_PROTOCOL of sysexits.h, which Python does not use itself
# The name of the variable for the rank depends on the launcher, and this variable contains that name. RANK is for
# launchers that have no variable of their own.
RANK_VARIABLE = "PARALLAX_RANK_VARIABLE"
RANK = "PARALLAX_RANK"

# This variable is set if no mpirun starts the workers. They find each other through a store that rank 0 runs.
WITHOUT_MPIRUN = "PARALLAX_WITHOUT_MPIRUN"

# A batch system sends SIGTERM, SIGUSR1 and SIGUSR2 to all processes of a job at once. This variable is set if only the
# driver acts on these signals.
BLOCK_SIGNALS = "PARALLAX_BLOCK_SIGNALS"

# The kinds below are reserved for the protocol. A report must not use them.
HELLO, ADDRESS, PORT_TAKEN, FAIL, DONE = "hello", "address", "port_taken", "fail", "done"
CLUSTER, STOP, HEARD = "cluster", "stop", "heard"
# The chief names the last step before a stop, and the driver forwards it to all workers. The chief receives this
# message last, when the other workers have confirmed it, because a rank that begins a later step would wait forever in
# that step.
LAST_STEP, LAST_STEP_KNOWN = "last_step", "last_step_known"
# LEAVE: a worker takes part in no further step. ALL_LEFT: the driver's answer when all workers have sent LEAVE.
LEAVE, ALL_LEFT = "leave", "all_left"
# The driver's command that specifies how all workers continue after a segment of the training.
ORDER = "order"
# SAVING: the chief saves a step of an epoch, and asks for the epoch's state. STATE: the driver's answer when all
# workers have reported this step.
SAVING, STATE = "saving", "state"
CLOSED = "closed"
# The address of the store on rank 0 by which ranks without mpirun find each other. The driver forwards it to all
# workers.
STORE = "store"
# PROOF: a process's claim before the first step. PROVEN: the driver's answer when the claims of all processes match the
# plan.
PROOF, PROVEN = "proof", "proven"
# What is installed on the host of a process. The process sends it as soon as it is connected.
INSTALLATION = "installation"
# A process has sent a hello with the role and index of a process that is already connected, or with a role and index
# that are not in the plan.
SURPLUS = "surplus"
# ALIVE: a heartbeat. WHERE: the driver asks, after a failure or a stall, what a process is doing. STANDS: the answer of
# the process.
ALIVE, WHERE, STANDS = "alive", "where", "stands"
RESERVED_KINDS = frozenset(
    {
        *(HELLO, ADDRESS, PORT_TAKEN, FAIL, DONE, CLUSTER, STOP, HEARD, LAST_STEP, LEAVE, ALL_LEFT, CLOSED),
        *(ALIVE, WHERE, STANDS, ORDER, LAST_STEP_KNOWN, PROOF, PROVEN, SURPLUS, STORE, SAVING, STATE, INSTALLATION),
    }
)


_OBJECTS: Mapping[str, Callable[[Any], Any]] = {
    "doing": Activity.of_fields,
    "where": Place.of_fields,
    "awaited": Awaited.of_fields,
}
_STANDING: Mapping[str, Any] = {
    "doing": dict,
    "doing_secs": int | float | None,
    "step": int | None,
    "awaited": dict,
    "peak_bytes": int | None,
}
# The required fields of the protocol's own messages. Other fields, and the fields of reports, are checked elsewhere.
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    HELLO: {"role": str, "index": int, "secret": str, "host": str, "memory_kills": int | None},
    ADDRESS: {"address": str},
    STORE: {"address": str},
    PORT_TAKEN: {"address": str},
    FAIL: {
        **{"error": str, "parts": dict | None, "traceback": str, "recurs": bool, "exit_status": int | None},
        **_STANDING,
    },
    PROOF: {"rank": int | None, "world_size": int | None, "plan": str},
    INSTALLATION: {"versions": dict},
    LAST_STEP: {"step": int},
    LEAVE: {"step": int},
    SAVING: {"step": int},
    ALIVE: _STANDING,
    STANDS: {"where": dict, "inside": str | None, **_STANDING},
}


@dataclass(frozen=True)
class Answer:
    """The driver's answer to the worker of one rank."""

    rank: int
    kind: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """A message from one child process. `received_secs` is the time on the driver's monotonic clock when the message
    arrived."""

    role: str
    index: int
    host: str
    kind: str
    fields: dict[str, Any]
    received_secs: float


def encode(kind: str, fields: dict[str, Any]) -> bytes:
    """Returns one line of JSON. NumPy scalars and arrays become numbers and lists; infinity and NaN are kept. `decode`
    makes activities and places again."""
    return json.dumps({"kind": kind, **fields}, default=_plain).encode() + b"\n"


def decode(line: bytes) -> tuple[str, dict[str, Any]]:
    """Returns the kind and the fields of one line. Raises ValueError if the line is not a message of this protocol."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a control message: {line[:SHOWN_BYTES]!r}") from error
    kind = fields.pop("kind", None) if isinstance(fields, dict) else None
    if not isinstance(kind, str):
        raise ValueError(f"not a control message: {line[:SHOWN_BYTES]!r}")
    for name, expected in _FIELDS.get(kind, {}).items():
        if not isinstance(fields.get(name), expected):
            raise ValueError(f"a control message {kind!r} without a valid {name!r}: {line[:SHOWN_BYTES]!r}")
        if name in _OBJECTS:
            fields[name] = _OBJECTS[name](fields[name])
    return kind, fields


def _plain(value: Any) -> Any:
    if isinstance(value, Activity | Place):
        return value.fields
    # NumPy scalars and arrays both have tolist(). A check of their types would make the launcher import NumPy.
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)
