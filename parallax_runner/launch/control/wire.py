"""The protocol between driver and children: one JSON object per line, over one TCP connection per child."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SHOWN_BYTES = 80

CONTROL_ADDRESS = "PARALLAX_CONTROL"
CONTROL_SECRET = "PARALLAX_CONTROL_SECRET"
# Seconds between two heartbeats of a child.
ALIVE_SECS = "PARALLAX_ALIVE_SECS"
# Seconds without a heartbeat after which a child writes its Python stacks into its log.
STACKS_SECS = "PARALLAX_STACKS_SECS"
# Holds the name of the variable in which a worker finds its rank. Launchers have different variables; RANK is for
# launchers that have none.
RANK_VARIABLE = "PARALLAX_RANK_VARIABLE"
RANK = "PARALLAX_RANK"

# Set if workers exchange gradients by Gloo and find each other through a store that rank 0 runs.
GLOO = "PARALLAX_GLOO"

# Set if only the driver acts on SIGTERM, SIGUSR1 and SIGUSR2, which a batch system sends to all processes of a job at
# once.
DEAF = "PARALLAX_DEAF"

# The kinds below are reserved for the protocol; a report may not use them.
HELLO, ADDRESS, PORT_TAKEN, FAIL, DONE = "hello", "address", "port_taken", "fail", "done"
CLUSTER, STOP, HEARD = "cluster", "stop", "heard"
# The chief names the last step before a stop, and the driver forwards it to all workers. The chief gets it last, when
# the others have confirmed it: a rank that began a further step would wait in it for ever.
LAST_STEP, LAST_STEP_KNOWN = "last_step", "last_step_known"
# A worker takes part in no further step; the driver's answer when all workers have reported this.
LEAVE, ALL_LEFT = "leave", "all_left"
# The driver's order: how all workers go on after a segment of the training.
ORDER = "order"
CLOSED = "closed"
# The address of Horovod's store, which rank 0 runs; the driver forwards it to all workers.
STORE = "store"
# A process's claim before the first step; the driver's answer when the claims of all processes match the plan.
PROOF, PROVEN = "proof", "proven"
# A process says hello under a name that is connected already, or that is not in the plan.
SURPLUS = "surplus"
# A heartbeat; after a failure or a stall, the driver's request for what a process is doing; the process's answer.
ALIVE, WHERE, STANDS = "alive", "where", "stands"
RESERVED_KINDS = frozenset(
    {
        *(HELLO, ADDRESS, PORT_TAKEN, FAIL, DONE, CLUSTER, STOP, HEARD, LAST_STEP, LEAVE, ALL_LEFT, CLOSED),
        *(ALIVE, WHERE, STANDS, ORDER, LAST_STEP_KNOWN, PROOF, PROVEN, SURPLUS, STORE),
    }
)
_STANDING: Mapping[str, Any] = {"doing": str, "doing_secs": int | float | None, "step": int | None}
# The required fields of the protocol's own messages. Further fields, and the fields of reports, are checked elsewhere.
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    HELLO: {"role": str, "index": int, "secret": str, "host": str},
    ADDRESS: {"address": str},
    STORE: {"address": str},
    PORT_TAKEN: {"address": str},
    FAIL: {"error": str, "traceback": str, "recurs": bool, "exit_status": int | None, **_STANDING},
    PROOF: {"rank": int | None, "world_size": int | None, "plan": str, "versions": dict},
    LAST_STEP: {"step": int},
    LEAVE: {"step": int},
    ALIVE: _STANDING,
    STANDS: {"where": str, "inside": str | None, **_STANDING},
}
# The state of a process until it reports another one.
STARTING = "starting"


@dataclass(frozen=True)
class Message:
    """A message from one child. `received_secs` is the driver's monotonic clock at arrival."""

    role: str
    index: int
    host: str
    kind: str
    fields: dict[str, Any]
    received_secs: float


def encode(kind: str, fields: dict[str, Any]) -> bytes:
    """Returns one line of JSON. NumPy scalars and arrays become numbers and lists; infinity and NaN are kept."""
    return json.dumps({"kind": kind, **fields}, default=_plain).encode() + b"\n"


def decode(line: bytes) -> tuple[str, dict[str, Any]]:
    """Returns the kind and the fields of one line. Raises ValueError if it is not a message of this protocol."""
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
    return kind, fields


def _plain(value: Any) -> Any:
    # NumPy scalars and arrays both have tolist(). A type check would have to import NumPy in the launcher.
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)
