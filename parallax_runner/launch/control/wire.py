"""What driver and children say to each other: one JSON object a line, over one TCP connection a child."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SHOWN_BYTES = 80

CONTROL_ADDRESS = "PARALLAX_CONTROL"
CONTROL_SECRET = "PARALLAX_CONTROL_SECRET"
# Seconds between two signs of life of a child.
ALIVE_SECS = "PARALLAX_ALIVE_SECS"
# Seconds without a sign of life after which a child writes its Python stacks into its log.
STACKS_SECS = "PARALLAX_STACKS_SECS"
# The name of the variable in which a worker finds its rank. Launchers have their own; this one is for those without.
RANK_VARIABLE = "PARALLAX_RANK_VARIABLE"
RANK = "PARALLAX_RANK"

# Set where workers exchange gradients by Gloo, and find each other by a store that rank 0 runs.
GLOO = "PARALLAX_GLOO"

# Set where only the driver acts on SIGTERM, SIGUSR1 and SIGUSR2: a batch system sends them to all processes of a job at
# once.
DEAF = "PARALLAX_DEAF"

# Words that belong to the protocol itself; a report may not use them as its kind.
HELLO, ADDRESS, PORT_TAKEN, FAIL, DONE = "hello", "address", "port_taken", "fail", "done"
CLUSTER, STOP, HEARD = "cluster", "stop", "heard"
# The chief names the last step before a stop; the driver passes it on to all workers, to the chief when the others have
# confirmed that they know: a rank that began one more would wait in it for ever.
LAST_STEP, LAST_STEP_KNOWN = "last_step", "last_step_known"
# A worker that takes part in no further step; the driver's answer when all have said so.
LEAVE, ALL_LEFT = "leave", "all_left"
# How all workers go on after a segment of the training.
ORDER = "order"
CLOSED = "closed"
# Where the ranks' store of Horovod is, which rank 0 runs; the driver passes it on to all workers.
STORE = "store"
# What a process is, before the first step; the driver's answer when all have proven to be what the plan says.
PROOF, PROVEN = "proof", "proven"
# A process that says hello as one that is connected already, or that the plan has not.
SURPLUS = "surplus"
# A sign of life; the driver's question at the moment of a failure or a stall; its answer.
ALIVE, WHERE, STANDS = "alive", "where", "stands"
RESERVED_KINDS = frozenset(
    {
        *(HELLO, ADDRESS, PORT_TAKEN, FAIL, DONE, CLUSTER, STOP, HEARD, LAST_STEP, LEAVE, ALL_LEFT, CLOSED),
        *(ALIVE, WHERE, STANDS, ORDER, LAST_STEP_KNOWN, PROOF, PROVEN, SURPLUS, STORE),
    }
)
_STANDING: Mapping[str, Any] = {"doing": str, "doing_secs": int | float | None, "step": int | None}
# What the protocol's own words must say; what they say beside it, and what reports say, is for others to judge.
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
# What a process is doing until it says otherwise.
STARTING = "starting"


@dataclass(frozen=True)
class Message:
    """What one child said. `received_secs` is the driver's monotonic clock at arrival."""

    role: str
    index: int
    host: str
    kind: str
    fields: dict[str, Any]
    received_secs: float


def encode(kind: str, fields: dict[str, Any]) -> bytes:
    """One line of JSON; NumPy scalars and arrays become numbers and lists, infinity and NaN are kept."""
    return json.dumps({"kind": kind, **fields}, default=_plain).encode() + b"\n"


def decode(line: bytes) -> tuple[str, dict[str, Any]]:
    """The kind and the fields of one line. Raises ValueError if it is not one of ours."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a control message: {line[:SHOWN_BYTES]!r}") from error
    kind = fields.pop("kind", None) if isinstance(fields, dict) else None
    if not isinstance(kind, str):
        raise ValueError(f"not a control message: {line[:SHOWN_BYTES]!r}")
    for name, expected in _FIELDS.get(kind, {}).items():
        if not isinstance(fields.get(name), expected):
            raise ValueError(f"a control message {kind!r} without a proper {name!r}: {line[:SHOWN_BYTES]!r}")
    return kind, fields


def _plain(value: Any) -> Any:
    # NumPy scalars and arrays both have tolist(); naming the types would mean importing NumPy in the launcher.
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)
