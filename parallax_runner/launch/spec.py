"""What to start: the noun between the plan and the processes."""

from dataclasses import dataclass
from pathlib import Path

from parallax_runner.launch.command import Command


@dataclass(frozen=True)
class LaunchSpec:
    """Everything needed to start a run.

    `worker` starts all workers, through mpirun if `under_mpirun`; `server` has one command a server. `host` is the
    address of this machine at which children reach the driver. A process without a sign of life for
    `hang_timeout_secs` counts as dead.
    """

    run_dir: Path
    workers: int
    worker: Command
    server: tuple[Command, ...] = ()
    under_mpirun: bool = True
    host: str = "127.0.0.1"
    grace_secs: float = 10.0
    startup_timeout_secs: float = 300.0
    hang_timeout_secs: float = 60.0

    @property
    def servers(self) -> int:
        """The number of servers."""
        return len(self.server)
