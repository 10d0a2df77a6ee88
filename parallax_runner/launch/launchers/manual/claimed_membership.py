"""Which workers and servers stand by for a run whose cluster changes size."""

from __future__ import annotations

from collections.abc import Callable

from parallax_runner.config.worker_numbers import ClusterSize
from parallax_runner.launch.launchers.manual.claims import Claims, Sizes
from parallax_runner.launch.launchers.membership import Membership


class ClaimedMembership(Membership):
    """Claims all processes that register, up to `sizes`. If the plan has no servers, every size has
    `unused_servers`, the number in the configuration."""

    def __init__(self, claims: Claims, run_dir: str, sizes: Sizes, *, timeout_secs: float, unused_servers: int) -> None:
        self._claims, self._run_dir, self._sizes = claims, run_dir, sizes
        self._timeout_secs, self._unused_servers = timeout_secs, unused_servers

    def available(self, wait_secs: float, stopped: Callable[[], bool]) -> ClusterSize:
        """Claims all processes that have registered, and returns the largest size for which there are enough."""
        workers, servers = self._claims.gather_largest(
            self._run_dir, self._sizes, wait_secs=wait_secs, timeout_secs=self._timeout_secs, stopped=stopped
        )
        return ClusterSize(workers, servers if self._sizes.servers else self._unused_servers)

    def has_more(self, running: ClusterSize) -> bool:
        """Claims the processes that have registered since, and returns whether there are more."""
        return self._claims.has_more(self._run_dir, self._sizes, running.workers, running.servers)
