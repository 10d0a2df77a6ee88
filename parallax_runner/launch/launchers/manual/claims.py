"""Waits for the standby processes of a run, and claims them."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch.launchers.manual.claim_table import Claim, ClaimTable, tell
from parallax_runner.launch.launchers.manual.standby_entry import Entry

log = logging.getLogger(__name__)

POLL_SECS = 0.2
# How long the driver waits for a replacement if a claimed process exits before all processes have registered.
REPLACE_SECS = 20.0


@dataclass(frozen=True)
class Sizes:
    """The numbers of processes that a run may have: `workers` in ascending order, and up to `servers` servers. A run
    with any servers needs at least one."""

    workers: Sequence[int]
    servers: int

    @property
    def least(self) -> dict[str, int]:
        """The smallest number of processes of each role."""
        return {"worker": self.workers[0], "server": min(self.servers, 1)}

    @property
    def most(self) -> dict[str, int]:
        """The largest number of processes of each role."""
        return {"worker": self.workers[-1], "server": self.servers}


class Claims(ClaimTable):
    """All claims of one rendezvous. They last for all runs of one driver, such as the jobs of a sweep."""

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
        left_secs: dict[Entry, float] = {}  # the exit times of processes that have no replacement yet
        told: list[str] = []
        while True:
            self._note_exits(left_secs, replace_secs)
            self._note_replacements(left_secs, self._claim_new(run_dir, wanted))
            seats = {role: _seated(role, count, self._of_role(role)) for role, count in wanted.items()}
            missing = _missing(seats)
            if not missing or stopped():
                return _taken(seats)
            self._refuse_late(left_secs, missing, replace_secs)
            if time.monotonic() > deadline:
                raise self._too_late(missing, timeout_secs)
            told = self._tell_missing(missing, told)
            time.sleep(POLL_SECS)

    def gather_largest(
        self,
        run_dir: str,
        sizes: Sizes,
        *,
        wait_secs: float,
        timeout_secs: float,
        stopped: Callable[[], bool],
    ) -> tuple[int, int]:
        """Waits for processes, and returns the largest numbers of workers and servers for which there are processes.

        Returns as soon as all are there. After `wait_secs`, the smallest numbers suffice. After `timeout_secs`, raises
        LaunchError, which names the missing processes. Once `stopped()` returns True, returns at once.
        """
        self._lost_secs = None
        begun_secs = time.monotonic()
        told: list[str] = []
        while True:
            self._tell_exits()
            self._claim_new(run_dir, sizes.most, by_number=False)
            found = self._largest(sizes)
            missing = self._missing_for(sizes.most)
            waited_secs = time.monotonic() - begun_secs
            if found is not None and (not missing or waited_secs > wait_secs):
                return found
            if stopped():
                return sizes.workers[0], sizes.servers
            if waited_secs > timeout_secs:
                raise self._too_late(self._missing_for(sizes.least), timeout_secs)
            told = self._tell_missing(missing, told)
            time.sleep(POLL_SECS)

    def has_more(self, run_dir: str, sizes: Sizes, workers: int, servers: int) -> bool:
        """Claims new processes, and returns whether more workers or servers than these can run."""
        self._claim_new(run_dir, sizes.most, by_number=False)
        found = self._largest(sizes)
        return found is not None and (found[0] > workers or found[1] > servers)

    def _largest(self, sizes: Sizes) -> tuple[int, int] | None:
        """Returns the largest numbers of workers and servers for which there are processes, or None if there are too
        few."""
        there = len(self._alive("worker"))
        workers = max((number for number in sizes.workers if number <= there), default=None)
        servers = min(len(self._alive("server")), sizes.servers)
        if workers is None or servers < sizes.least["server"]:
            return None
        return workers, servers

    def _missing_for(self, wanted: Mapping[str, int]) -> list[str]:
        return [f"{role} {number}" for role, count in wanted.items() for number in range(len(self._alive(role)), count)]

    def _tell_missing(self, missing: list[str], told: list[str]) -> list[str]:
        """Logs for which processes the driver waits, unless it has `told` the same before. Returns them."""
        if missing != told:
            log.info("waiting at %s for %s", self._address, ", ".join(missing))
        return missing

    def _tell_exits(self) -> None:
        for entry in self._forget_ended():
            tell(f"{entry} has exited")

    def _note_exits(self, left_secs: dict[Entry, float], replace_secs: float) -> None:
        """Adds the claimed processes that have exited since the last call."""
        for entry in self._forget_ended():
            tell(f"{entry} has exited; waiting {replace_secs:g} s for a replacement")
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


def _missing(seats: Mapping[str, list[Claim | None]]) -> list[str]:
    return [f"{role} {index}" for role, claims in seats.items() for index, claim in enumerate(claims) if claim is None]


def _taken(seats: Mapping[str, list[Claim | None]]) -> dict[str, list[Claim]]:
    """Returns the claims of each role, without empty seats."""
    return {role: [claim for claim in claims if claim is not None] for role, claims in seats.items()}


@functools.cache
def claims_at(address: str) -> Claims:
    """Returns this driver's claims at a rendezvous. Opens each rendezvous only once."""
    return Claims(address)
