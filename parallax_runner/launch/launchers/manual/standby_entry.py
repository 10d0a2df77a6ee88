"""The entry that describes a standby process in the rendezvous."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One process: its `role`, its rank or index (None: any), and the `host:port` at which it listens for a driver.

    `id` is unique to the process, because another process may listen at the same address later.
    """

    id: str
    role: str
    index: int | None
    address: str
    host: str
    pid: int

    def __str__(self) -> str:
        name = self.role if self.index is None else f"{self.role} {self.index}"
        return f"{name} (pid {self.pid} on {self.host}, {self.address})"


_TYPES = {"id": str, "role": str, "address": str, "host": str, "pid": int}


def signed(entry: Entry, secret: bytes) -> bytes:
    """Returns the entry as JSON, with a signature that proves that its writer knows the secret."""
    fields = dataclasses.asdict(entry)
    return json.dumps({**fields, "signature": _signature(fields, secret)}).encode()


def verified(content: bytes, secret: bytes) -> Entry | None:
    """Returns the entry, or None if its writer did not know the secret or it is not an entry."""
    try:
        fields = json.loads(content)
        given = str(fields.pop("signature"))
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None
    # JSON allows half of a surrogate pair, which has no UTF-8.
    if not hmac.compare_digest(given.encode(errors="replace"), _signature(fields, secret).encode()):
        return None
    return _entry_of(fields)


def _entry_of(fields: dict[str, Any]) -> Entry | None:
    """Returns the entry with these fields, or None if another version of this package wrote them."""
    if {name: type(value) for name, value in fields.items() if name != "index"} != _TYPES:
        return None
    index = fields.get("index")
    if index is not None and (type(index) is not int or index < 0):
        return None
    return Entry(**fields)


def _signature(fields: dict[str, Any], secret: bytes) -> str:
    return hmac.new(secret, json.dumps(fields, sort_keys=True).encode(), hashlib.sha256).hexdigest()
