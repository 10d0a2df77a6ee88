"""The standby processes that this driver has claimed. A claim is a connection, so it ends with the driver."""

from __future__ import annotations

import functools
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch import bind_address
from parallax_runner.launch.launchers.manual.channel import Channel
from parallax_runner.launch.launchers.manual.standby_entry import Entry
from parallax_runner.launch.launchers.manual.stores.store import StoreLostError, open_store

log = logging.getLogger(__name__)

POLL_SECS = 0.2
CONNECT_SECS = 5.0
# A process that has not answered is tried again after this time, and then after twice the time.
FIRST_WAIT_SECS = 0.5
# How long the driver waits for a replacement if a claimed process exits before all processes have registered.
REPLACE_SECS = 20.0
# How long the driver waits for a store that no longer answers, such as a server that is being restarted.
STORE_SECS = 60.0


@dataclass(frozen=True)
class Claim:
    """A process claimed by this driver. Starting a command in the process requires `token`."""

    entry: Entry
    channel: Channel
    token: str


class Claims:
    """All claims of one rendezvous. They last for all runs of one driver, such as the jobs of a sweep."""

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

    def gather(
        self,
        run_dir: str,
        wanted: dict[str, int],
        timeout_secs: float,
        stopped: Callable[[], bool],
        *,
        replace_secs: float | None = None,
    ) -> dict[str, list[Claim]]:
        """Waits for all processes and returns one claim per worker rank and per server index.

        Raises LaunchError if two processes have registered with the same rank or index, if processes are missing after
        `timeout_secs`, or if a claimed process exits and has no replacement after `replace_secs` (by default
        REPLACE_SECS). The message names these processes. Once `stopped()` returns True, returns the claims made so far.
        """
        replace_secs = REPLACE_SECS if replace_secs is None else replace_secs
        self._lost_secs = None
        self._forget_ended()  # these processes exited before this run, so they need no replacement
        deadline = time.monotonic() + timeout_secs
        told: frozenset[str] = frozenset()
        left_secs: dict[Entry, float] = {}  # the exit times of processes that have no replacement yet
        while True:
            self._note_exits(left_secs, replace_secs)
            self._note_replacements(left_secs, self._claim_new(run_dir, wanted))
            seats = {role: _seated(role, count, self._of_role(role)) for role, count in wanted.items()}
            missing = [name for role in seats for name in _missing(role, seats[role])]
            if not missing or stopped():
                return {role: [claim for claim in those if claim is not None] for role, those in seats.items()}
            self._refuse_late(left_secs, missing, replace_secs)
            if time.monotonic() > deadline:
                raise self._too_late(missing, timeout_secs)
            if frozenset(missing) != told:
                log.info("waiting at %s for %s", self._address, ", ".join(missing))
                told = frozenset(missing)
            time.sleep(POLL_SECS)

    def gather_largest(
        self,
        run_dir: str,
        numbers: Sequence[int],
        servers: int,
        *,
        wait_secs: float,
        timeout_secs: float,
        stopped: Callable[[], bool],
    ) -> int:
        """Waits for processes, and returns the largest of `numbers` (ascending) for which there are workers.

        Returns as soon as there are workers for the largest number and all servers. After `wait_secs`, workers for any
        number suffice. After `timeout_secs`, raises LaunchError, which names the missing processes. Once `stopped()`
        returns True, returns at once.
        """
        self._lost_secs = None
        begun_secs = time.monotonic()
        is_told = False
        while True:
            for entry in self._forget_ended():
                _tell(f"{entry} has exited")
            self._claim_new(run_dir, {"worker": numbers[-1], "server": servers}, by_number=False)
            found = self._largest(numbers, servers)
            waited_secs = time.monotonic() - begun_secs
            if found == numbers[-1] or (found is not None and waited_secs > wait_secs):
                return found
            if stopped():
                return numbers[0]
            if waited_secs > timeout_secs:
                raise self._too_late(self._missing_for(numbers[0], servers), timeout_secs)
            if not is_told:
                log.info("waiting at %s for %s", self._address, self._missing_for(numbers[-1], servers))
                is_told = True
            time.sleep(POLL_SECS)

    def has_more(self, run_dir: str, numbers: Sequence[int], servers: int, running: int) -> bool:
        """Claims new processes, and returns whether there are workers for one of `numbers` above `running`."""
        self._claim_new(run_dir, {"worker": numbers[-1], "server": servers}, by_number=False)
        found = self._largest(numbers, servers)
        return found is not None and found > running

    def in_order(self, wanted: Mapping[str, int]) -> dict[str, list[Claim]]:
        """Returns claimed processes in the order of their ranks or indexes, which may have gaps. Processes without a
        number come last, in the order of their claims."""
        found = {}
        for role, count in wanted.items():
            claims = sorted(self._of_role(role), key=lambda claim: _order(claim.entry))
            found[role] = claims[:count]
        return found

    def _largest(self, numbers: Sequence[int], servers: int) -> int | None:
        """Returns the largest of `numbers` for which there are workers, or None if a server or a worker is missing."""
        workers = len(self._alive("worker"))
        if len(self._alive("server")) < servers:
            return None
        return max((number for number in numbers if number <= workers), default=None)

    def _missing_for(self, workers: int, servers: int) -> list[str]:
        wanted = {"worker": workers, "server": servers}
        return [f"{role} {number}" for role, count in wanted.items() for number in range(len(self._alive(role)), count)]

    def _alive(self, role: str) -> list[Claim]:
        return [claim for claim in self._of_role(role) if not self._is_ending(claim)]

    def _is_ending(self, claim: Claim) -> bool:
        """Returns whether a process has exited, or has said that it must end."""
        return not claim.channel.is_open or self.leaves_in_secs(claim) is not None

    def _note_exits(self, left_secs: dict[Entry, float], replace_secs: float) -> None:
        """Adds the claimed processes that have exited since the last call."""
        for entry in self._forget_ended():
            _tell(f"{entry} has exited; waiting {replace_secs:g} s for a replacement")
            left_secs[entry] = time.monotonic()

    def _note_replacements(self, left_secs: dict[Entry, float], roles: Sequence[str]) -> None:
        """Removes a process for each new one with the same role."""
        for role in roles:
            replaced = next((entry for entry in left_secs if entry.role == role), None)
            if replaced is not None:
                del left_secs[replaced]

    def _refuse_late(self, left_secs: Mapping[Entry, float], missing: list[str], replace_secs: float) -> None:
        """Raises LaunchError if a process has had no replacement for `replace_secs`."""
        for entry, since_secs in left_secs.items():
            if time.monotonic() > since_secs + replace_secs:
                raise self._not_replaced(entry, missing, replace_secs)

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
                _tell(f"{error}; waiting {STORE_SECS:g} s for it")
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

    def _not_replaced(self, entry: Entry, missing: list[str], replace_secs: float) -> LaunchError:
        return LaunchError(
            f"{entry} exited while the driver was waiting for the others, and no replacement registered within "
            f"{replace_secs:g} s; missing: {', '.join(missing)}"
        ).about(Setting("cluster.rendezvous", self._address))

    def _too_late(self, missing: list[str], timeout_secs: float) -> LaunchError:
        there = [str(claim.entry) for claim in self._claims.values()]
        beside = f"; registered: {', '.join(there)}" if there else "; no process has registered"
        lost = "; the store does not answer" if self._lost_secs is not None else ""
        useless = "".join(f"; {why}" for why in self._useless.values())
        return LaunchError(
            f"missing after {timeout_secs:g} s (cluster.rendezvous_timeout_secs): {', '.join(missing)}{beside}"
            f"{useless}{lost}."
        ).about(
            Setting("cluster.rendezvous", self._address),
            remedy="Start the missing processes with python -m parallax_runner.worker or .server, --rendezvous and the "
            "same secret",
        )


def _seated(role: str, count: int, claims: list[Claim]) -> list[Claim | None]:
    """Returns the claims ordered by rank or index. Claims without a rank or index fill the gaps. Raises LaunchError if
    two claims have the same rank or index."""
    seats: list[Claim | None] = [None] * count
    for claim in claims:
        index = claim.entry.index
        if index is None or not 0 <= index < count:
            continue
        other = seats[index]
        if other is not None:
            raise LaunchError(
                f"two processes have registered as {role} {index}: {other.entry} and {claim.entry}; expected a "
                "different rank or index for each process, or none"
            )
        seats[index] = claim
    unnumbered = iter([claim for claim in claims if claim.entry.index is None])
    return [next(unnumbered, None) if seat is None else seat for seat in seats]


def _order(entry: Entry) -> float:
    return math.inf if entry.index is None else entry.index


def _tell(note: str) -> None:
    log.warning("%s", note)
    print(f"parallax_runner: {note}", file=sys.stderr)


def _missing(role: str, seats: list[Claim | None]) -> list[str]:
    return [f"{role} {index}" for index, claim in enumerate(seats) if claim is None]


@functools.cache
def claims_at(address: str) -> Claims:
    """Returns this driver's claims at a rendezvous. Opens each rendezvous only once."""
    return Claims(address)
