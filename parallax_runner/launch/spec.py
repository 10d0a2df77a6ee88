"""What to start: the noun between the plan and the processes."""

from dataclasses import dataclass
from pathlib import Path

from parallax_runner.launch.bind_address import LOOPBACK
from parallax_runner.launch.command import Command
from parallax_runner.launch.hosts import Hosts


@dataclass(frozen=True)
class LaunchSpec:
    """Everything needed to start a run.

    `worker` starts all workers, through mpirun if `under_mpirun`; `server` has one command a server. `hosts` is None
    where all is on this machine; with others, `shared` are the folders that all of them must see. A process without a
    sign of life for `hang_timeout_secs` counts as dead. Without the end of a step for `stall_timeout_secs` the run
    fails; None: there are only notices. `together`: every step needs all workers.
    """

    run_dir: Path
    workers: int
    worker: Command
    server: tuple[Command, ...] = ()
    under_mpirun: bool = True
    hosts: Hosts | None = None
    shared: tuple[Path, ...] = ()
    grace_secs: float = 10.0
    startup_timeout_secs: float = 300.0
    hang_timeout_secs: float = 60.0
    stall_timeout_secs: float | None = None
    together: bool = True

    @property
    def servers(self) -> int:
        """The number of servers."""
        return len(self.server)

    @property
    def address(self) -> str:
        """The address of this machine at which children reach the driver."""
        return LOOPBACK if self.hosts is None else self.hosts.address

    def host_of_server(self, index: int) -> str | None:
        """The other machine on which a server is started, None for this one."""
        return None if self.hosts is None else self.hosts.of_server(index)
