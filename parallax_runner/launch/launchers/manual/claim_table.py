"""The table of the standby processes that this driver has claimed: new ones are claimed, and ended ones are dropped."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from parallax_runner.launch import bind_address
from parallax_runner.launch.launchers.manual.channel import Channel
from parallax_runner.launch.launchers.manual.standby_entry import Entry
from parallax_runner.launch.launchers.manual.stores.store import StoreLostError, open_store

log = logging.getLogger(__name__)

CONNECT_SECS = 5.0
# A process that has not answered is tried again after this time, and then after twice the time.
FIRST_WAIT_SECS = 0.5
# How long the driver waits for a store that no longer answers, such as a server that is being restarted.
STORE_SECS = 60.0


@dataclass(frozen=True)
class Claim:
    """A process claimed by this driver. Starting a command in the process requires `token`."""

    entry: Entry
    channel: Channel
    token: str


class ClaimTable:
    """The claims of one rendezvous. A claim is a connection, so it ends with the driver."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.store = open_store(address, is_driver=True)
        self._claims: dict[str, Claim] = {}
        # Maps an entry's id to the reason why the process cannot be claimed.
        self._useless: dict[str, str] = {}
        # Maps an entry's id to the time before which it is not tried again, and to the last wait.
        self._again_secs: dict[str, float] = {}
        self._waits_secs: dict[str, float] = {}
        # Maps the id of a process that must end to the number of seconds that it has.
        self._leaving_secs: dict[str, float] = {}
        # Since when the store does not answer.
        self._lost_secs: float | None = None

    @property
    def own_address(self) -> str:
        """This machine's address on the route to claimed processes on other hosts, or else the loopback address."""
        hosts = [claim.channel.own_host for claim in self._claims.values() if claim.channel.is_open]
        return next((host for host in hosts if host != bind_address.LOOPBACK), bind_address.LOOPBACK)

    def leaves_in_secs(self, claim: Claim) -> float | None:
        """Returns how many seconds a process has that has said that it must end, or None if it has not said so."""
        if claim.entry.id not in self._leaving_secs and claim.channel.has_input:
            with suppress(OSError, ValueError):
                said = claim.channel.receive(CONNECT_SECS)
                if said is not None and said["kind"] == "leaving":
                    self._leaving_secs[claim.entry.id] = float(said["secs"])
        return self._leaving_secs.get(claim.entry.id)

    def _alive(self, role: str) -> list[Claim]:
        return [claim for claim in self._of_role(role) if not self._is_ending(claim)]

    def _is_ending(self, claim: Claim) -> bool:
        """Returns whether a process has exited, or has said that it must end."""
        return not claim.channel.is_open or self.leaves_in_secs(claim) is not None

    def _of_role(self, role: str) -> list[Claim]:
        return [claim for claim in self._claims.values() if claim.entry.role == role]

    def _forget_ended(self) -> list[Entry]:
        """Drops the claims whose processes have exited or must end, and returns their entries."""
        ended = [claim for claim in self._claims.values() if self._is_ending(claim)]
        for claim in ended:
            claim.channel.close()
            del self._claims[claim.entry.id]
        return [claim.entry for claim in ended]

    def _claim_new(self, run_dir: str, wanted: Mapping[str, int], *, by_number: bool = True) -> list[str]:
        """Claims new processes, and returns their roles. With `by_number`, does not claim a process whose rank or index
        is not wanted."""
        before = set(self._claims)
        # A process that serves another run may be free later, or withdraw.
        self._useless = {id: why for id, why in self._useless.items() if id in self._again_secs}
        for entry in self._entries():
            if not self._is_set_aside(entry) and self._has_place(entry, wanted, by_number=by_number):
                self._claim(entry, run_dir)
        return [claim.entry.role for id, claim in self._claims.items() if id not in before]

    def _is_set_aside(self, entry: Entry) -> bool:
        """Returns whether an entry's process is claimed already, must end, or is not to be tried now."""
        if entry.id in self._claims or entry.id in self._leaving_secs:
            return True
        return time.monotonic() < self._again_secs.get(entry.id, 0.0)

    def _has_place(self, entry: Entry, wanted: Mapping[str, int], *, by_number: bool) -> bool:
        """Returns whether a process is wanted that is not claimed yet, and that this one can be."""
        count = wanted.get(entry.role, 0)
        if by_number and entry.index is not None:
            return 0 <= entry.index < count
        return len(self._of_role(entry.role)) < count

    def _entries(self) -> list[Entry]:
        """Returns the entries in the store, or none if the store does not answer. After STORE_SECS without an answer,
        raises StoreLostError."""
        try:
            entries = self.store.entries()
        except StoreLostError as error:
            now = time.monotonic()
            if self._lost_secs is None:
                self._lost_secs = now
                tell(f"{error}; waiting {STORE_SECS:g} s for it")
            elif now > self._lost_secs + STORE_SECS:
                raise
            return []
        self._lost_secs = None
        return entries

    def _claim(self, entry: Entry, run_dir: str) -> None:
        try:
            channel = Channel.connect(entry.address, self.store.secret, CONNECT_SECS)
            channel.send("claim", run=run_dir)
            answer = channel.receive(CONNECT_SECS) or {}
        except (OSError, ValueError) as error:
            self._useless[entry.id] = f"{entry} is gone, or cannot be reached: {error}"
            self._set_aside(entry, is_gone=isinstance(error, ConnectionRefusedError))
            return
        if answer.get("kind") == "busy":
            self._useless[entry.id] = f"{entry} is serving another run, {answer['run']}"
        elif answer.get("id") != entry.id:
            self._useless[entry.id] = f"{entry} is gone: another process is listening at its address"
            self._set_aside(entry, is_gone=True)
        else:
            self._useless.pop(entry.id, None)
            self._claims[entry.id] = Claim(entry, channel, answer["token"])
            return
        channel.close()

    def _set_aside(self, entry: Entry, *, is_gone: bool) -> None:
        """Does not try an entry again for a while, or never. A process can be too busy with strangers to answer, but an
        attempt takes CONNECT_SECS if its machine is lost, so the waits get longer."""
        wait_secs = 2 * self._waits_secs.get(entry.id, FIRST_WAIT_SECS / 2)
        self._waits_secs[entry.id] = wait_secs
        self._again_secs[entry.id] = math.inf if is_gone else time.monotonic() + wait_secs

    def in_order(self, wanted: Mapping[str, int]) -> dict[str, list[Claim]]:
        """Returns claimed processes in the order of their ranks or indexes, which may have gaps. Processes without a
        number come last, in the order of their claims."""
        found = {}
        for role, count in wanted.items():
            claims = sorted(self._of_role(role), key=lambda claim: _order(claim.entry))
            found[role] = claims[:count]
        return found


def _order(entry: Entry) -> float:
    return math.inf if entry.index is None else entry.index


def tell(note: str) -> None:
    """Logs a note and prints it."""
    log.warning("%s", note)
    print(f"parallax_runner: {note}", file=sys.stderr)
