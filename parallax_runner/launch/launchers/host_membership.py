"""Which hosts of a run can be used now."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from parallax_runner.config.cluster_size import largest_size
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.resource_info import Host, read_hosts
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.worker_numbers import ClusterSize
from parallax_runner.errors import LaunchError
from parallax_runner.launch.host_checks import RETURNS_SECS, HostChecks
from parallax_runner.launch.hosts import way_to
from parallax_runner.launch.launchers.membership import Membership
from parallax_runner.plan.plan import Plan

log = logging.getLogger(__name__)

BETWEEN_SECS = 2.0


class HostMembership(Membership):
    """A host is there if it passes the checks of `check_hosts`."""

    def __init__(self, config: RunConfig, plan: Plan) -> None:
        self._config, self._numbers = config, plan.worker_numbers
        self._run_dir = Path(config.run_dir).resolve()
        self._has_started = False
        self._checks: HostChecks | None = None
        self._checked: tuple[str, ...] = ()

    def available(self, wait_secs: float, stopped: Callable[[], bool]) -> ClusterSize:
        """Checks all hosts until all of them are there, or until `wait_secs` have passed. If there are too few, the
        first start then fails, while a restart waits for RETURNS_SECS."""
        most_secs = max(wait_secs, RETURNS_SECS) if self._has_started else wait_secs
        begun_secs = time.monotonic()
        told: set[str] = set()
        while True:
            lost = self._lost(stopped)
            found = self._largest(lost)
            until_secs = most_secs if found is None else wait_secs
            is_over = not lost or time.monotonic() >= begun_secs + until_secs
            if stopped():
                return ClusterSize.of(self._config.cluster)
            if is_over and found is None:
                raise self._too_few(lost)
            _tell_lost(lost, told, until_secs)
            if is_over and found is not None:
                self._has_started = True
                return found
            time.sleep(BETWEEN_SECS)

    def has_more(self, running: ClusterSize) -> bool:
        """Checks the hosts that do not train. The answer to one call is that of a check which an earlier call has
        begun."""
        if self._checks is None:
            self._begin_checks([name for name in self._remote_names() if name not in running.hosts])
            return False
        if not self._checks.are_over():
            return False
        lost = [name for name in self._checked if self._error_of(name) is not None]
        self.close()
        found = self._largest(lost)
        return found is not None and found.workers > running.workers

    def close(self) -> None:
        """Ends the checks of hosts that do not train."""
        if self._checks is not None:
            self._checks.__exit__()
        self._checks = None

    def _hosts(self) -> Sequence[Host]:
        """Returns the hosts that the run may use, whether they are there or not."""
        return read_hosts(self._config.cluster.resource_info or ())

    def _is_here(self, host: Host) -> bool:
        return host.is_here

    def _address_towards(self, name: str) -> str:
        """Returns this machine's address on the route to a host. Raises LaunchError if there is no route."""
        return way_to(name)[0]

    def _remote_names(self) -> list[str]:
        return [host.name for host in self._hosts() if not self._is_here(host)]

    def _lost(self, stopped: Callable[[], bool]) -> dict[str, LaunchError]:
        """Returns the hosts that cannot be used, each with the reason."""
        names = self._remote_names()
        lost = self._begin_checks(names)
        if self._checks is not None:
            self._checks.wait(stopped)
        for name in self._checked:
            error = self._error_of(name)
            if error is not None:
                lost[name] = error
        self.close()
        return lost

    def _begin_checks(self, names: Sequence[str]) -> dict[str, LaunchError]:
        """Begins the checks of these hosts. Returns those to which there is no route, each with the reason."""
        addresses, lost = {}, {}
        for name in names:
            try:
                addresses[name] = self._address_towards(name)
            except LaunchError as error:
                lost[name] = error
        self._checked = tuple(addresses)
        if addresses:
            shell, folders = self._config.cluster.remote_shell, shared_folders(self._config, self._run_dir)
            checks = HostChecks(self._checked, shell, next(iter(addresses.values())), folders)
            self._checks = checks.__enter__()
        return lost

    def _error_of(self, name: str) -> LaunchError | None:
        assert self._checks is not None
        try:
            self._checks.name_of(name)
        except LaunchError as error:
            return error
        return None

    def _largest(self, lost: Collection[str]) -> ClusterSize | None:
        there = [host for host in self._hosts() if host.name not in lost]
        return largest_size(there, self._numbers, mode_of(self._config.comm))

    def _too_few(self, lost: dict[str, LaunchError]) -> LaunchError:
        for error in lost.values():
            return error
        names = ", ".join(host.name for host in self._hosts())
        return LaunchError(
            f"the hosts that are left ({names}) have too few slots; the run goes on with at least "
            f"{self._numbers[0]} workers"
        )


def shared_folders(config: RunConfig, run_dir: Path) -> tuple[Path, ...]:
    """Returns the folders of a run that all its hosts must see."""
    return (run_dir, Path(config.ckpt.folder)) if config.ckpt.enabled else (run_dir,)


def _tell_lost(lost: dict[str, LaunchError], told: set[str], wait_secs: float) -> None:
    """Prints a line for each host that has not been `told` yet."""
    for name, error in lost.items():
        if name not in told:
            told.add(name)
            note = f"{error}. The run waits for this host, for at most {wait_secs:g} s"
            log.warning("%s", note)
            print(f"parallax_runner: {note}", file=sys.stderr)
