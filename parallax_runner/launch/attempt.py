"""One attempt at a run: starts the processes, keeps account of who is there, done or lost, and ends them all."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from parallax_runner.errors import LaunchError
from parallax_runner.launch import guard, wire
from parallax_runner.launch.blame import Failure, Member, first_lost, reason_of
from parallax_runner.launch.command import Command
from parallax_runner.launch.control import ControlServer
from parallax_runner.launch.family import end_family
from parallax_runner.launch.logs import last_lines, log_path
from parallax_runner.launch.mpirun_report import find_rank_exit, lines_of_rank
from parallax_runner.launch.wire import Message

log = logging.getLogger(__name__)

TICK_SECS = 0.1
# How long a process that has exited may have last words on their way through its connection.
LAST_WORDS_SECS = 1.0
LAST_LINES = 20
_INTERNAL_KINDS = frozenset({wire.CLOSED, wire.PORT_TAKEN})


@dataclass(frozen=True)
class LaunchSpec:
    """Everything needed to start a run.

    `worker` starts all workers, through mpirun if `under_mpirun`; `server` has one command a server. `host` is the
    address of this machine at which children reach the driver.
    """

    run_dir: Path
    workers: int
    worker: Command
    server: tuple[Command, ...] = ()
    under_mpirun: bool = True
    host: str = "127.0.0.1"
    grace_secs: float = 10.0
    startup_timeout_secs: float = 300.0

    @property
    def servers(self) -> int:
        """The number of servers."""
        return len(self.server)


@dataclass
class _Child:
    """A process the driver itself started, and the members that end with it."""

    process: subprocess.Popen
    members: Sequence[Member]
    exited_secs: float | None = None


class Attempt:
    """The processes of one attempt. Use as a context manager: leaving it ends every process, whatever happened."""

    def __init__(
        self, spec: LaunchSpec, *, on_message: Callable[[Message], None], on_tick: Callable[[], None] | None
    ) -> None:
        self._spec = spec
        self._on_message = on_message
        self._on_tick = on_tick
        self._control = ControlServer(workers=spec.workers, servers=spec.servers, host=spec.host)
        self._workers = [Member("worker", rank) for rank in range(spec.workers)]
        self._servers = [Member("server", index) for index in range(spec.servers)]
        self._mpirun = Member("mpirun", 0)
        self._children: list[_Child] = []
        self._started_secs = time.monotonic()
        self._servers_may_end = False
        self.done: dict[tuple[str, int], dict[str, Any]] = {}
        self.taken_address: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end_family([child.process for child in self._children], self._control.secret)
        self._control.close()

    def start(self) -> None:
        """Starts servers, then workers. Raises LaunchError if a command cannot be executed."""
        for member, command in zip(self._servers, self._spec.server, strict=True):
            self._start(command, [member], log_path(self._spec.run_dir, "server", member.index))
        if self._spec.under_mpirun:
            log_name, members = log_path(self._spec.run_dir, "mpirun", 0), [*self._workers, self._mpirun]
        else:
            log_name, members = log_path(self._spec.run_dir, "worker", 0), self._workers
        self._start(self._spec.worker, members, log_name)

    def pump(self, until: Callable[[], bool], timeout_secs: float | None = None) -> bool:
        """Handles what comes in until `until()` holds; False if `timeout_secs` passed first."""
        deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
        while not until():
            if deadline is not None and time.monotonic() > deadline:
                return False
            message = self._control.next_message(TICK_SECS)
            while message is not None:
                self._take(message)
                message = self._control.next_message(0.0)
            self._look_at_processes()
            self._look_at_clock()
            if self._on_tick is not None:
                self._on_tick()
        return True

    def stop_workers(self) -> None:
        """Asks the workers to end by themselves; the servers stay, since workers may need them to end well."""
        self._control.stop("worker")

    def stop_servers(self) -> None:
        """Asks the servers to end, which from now on is no failure."""
        self._servers_may_end = True
        self._control.stop("server")

    def workers_done(self) -> bool:
        """Whether every worker has said that it is done."""
        return all(member.done for member in self._workers)

    def workers_exited(self) -> bool:
        """Whether the process that holds the workers, mpirun or the only worker, has exited."""
        return self._children[-1].process.poll() is not None

    def first_lost_secs(self) -> float | None:
        """Monotonic time of the first sign that some process ended before its time, None if there is no sign."""
        return min((m.lost_secs for m in self._members() if m.lost_secs is not None), default=None)

    def all_exited(self) -> bool:
        """Whether every process the driver started has exited, and all connections are closed."""
        return all(child.process.poll() is not None for child in self._children) and not self._connected()

    def unfinished(self) -> str:
        """The processes that have not ended, for a message."""
        alive = [member for child in self._children if child.process.poll() is None for member in child.members]
        return ", ".join(f"{member.role} {member.index}" for member in alive if member.connected) or "mpirun"

    def first_failure(self) -> Failure:
        """The process to blame; reads what mpirun and the process wrote, so best asked when all have exited."""
        mpirun_text = "\n".join(last_lines(log_path(self._spec.run_dir, "mpirun", 0), 1000))
        rank_exit = find_rank_exit(mpirun_text) if self._spec.under_mpirun else None
        if rank_exit is not None and rank_exit.rank < self._spec.workers:
            named = self._workers[rank_exit.rank]
            named.exit_status = rank_exit.exit_status
            named.lose(time.monotonic())
        member = first_lost(self._members(), rank_exit)
        if member.role == "worker" and self._spec.under_mpirun and _explains_nothing(member):
            member = self._mpirun if self._mpirun.exit_status else member
        reason = reason_of(member)
        if not member.said_hello and member.lost_secs == self._startup_deadline_secs:
            reason = f"did not start within {self._spec.startup_timeout_secs:.0f} s"
        return Failure(member.role, member.index, member.host, reason, self._last_words(member, mpirun_text))

    @property
    def _startup_deadline_secs(self) -> float:
        return self._started_secs + self._spec.startup_timeout_secs

    def _members(self) -> list[Member]:
        return [*self._workers, *self._servers, self._mpirun]

    def _connected(self) -> list[Member]:
        return [member for member in self._members() if member.connected]

    def _start(self, command: Command, members: Sequence[Member], log_name: Path) -> None:
        log_name.parent.mkdir(parents=True, exist_ok=True)
        env = {
            **os.environ,
            **command.env,
            wire.CONTROL_ADDRESS: self._control.address,
            wire.CONTROL_SECRET: self._control.secret,
        }
        # mpirun ends its ranks when told to end; a server has nobody to tell.
        is_mpirun = self._mpirun in members
        last_signal = "15" if is_mpirun else "9"
        guarded = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), last_signal, *command.argv]
        try:
            # mpirun's output is read as facts of this attempt, so an earlier one's must not stand there.
            with open(log_name, "wb" if is_mpirun else "ab") as output:
                process = subprocess.Popen(
                    guarded,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise LaunchError(f"cannot start {command.argv[0]}: {error}") from error
        self._children.append(_Child(process, members))
        log.info("started pid %d: %s", process.pid, " ".join(command.argv))

    def _take(self, message: Message) -> None:
        member = (self._workers if message.role == "worker" else self._servers)[message.index]
        if message.kind == wire.HELLO:
            member.said_hello, member.connected, member.host = True, True, message.host
        elif message.kind == wire.DONE:
            self._take_done(member, message)
        elif message.kind == wire.FAIL:
            member.error = str(message.fields.get("error", "failed without saying why"))
            member.traceback = str(message.fields.get("traceback", ""))
            member.lose(message.received_secs)
        elif message.kind == wire.PORT_TAKEN:
            self.taken_address = str(message.fields.get("address"))
        elif message.kind == wire.CLOSED:
            member.connected = False
            if not member.done:
                member.lose(message.received_secs)
        if message.kind not in _INTERNAL_KINDS:
            self._on_message(message)

    def _take_done(self, member: Member, message: Message) -> None:
        if member.role == "server" and not self._servers_may_end:
            member.error = "ended before the workers were done"
            member.lose(message.received_secs)
            return
        member.done = True
        self.done[member.role, member.index] = message.fields

    def _look_at_processes(self) -> None:
        now = time.monotonic()
        for child in self._children:
            status = child.process.poll()
            if status is None:
                continue
            if child.exited_secs is None:
                child.exited_secs = now
                # mpirun's status is its own, not that of each of its ranks.
                child.members[-1].exit_status = status
            # A connection says itself when it is closed; this is for those that never had one, or left it to a fork.
            if now - child.exited_secs > LAST_WORDS_SECS:
                for member in child.members:
                    if not member.done and member is not self._mpirun:
                        member.lose(child.exited_secs)

    def _look_at_clock(self) -> None:
        if time.monotonic() < self._startup_deadline_secs:
            return
        for member in (*self._workers, *self._servers):
            if not member.said_hello:
                member.lose(self._startup_deadline_secs)

    def _last_words(self, member: Member, mpirun_text: str) -> tuple[str, ...]:
        if member.role == "mpirun":
            return tuple(mpirun_text.splitlines()[-LAST_LINES:])
        own = tuple(member.traceback.splitlines()[-LAST_LINES:])
        own = own or last_lines(log_path(self._spec.run_dir, member.role, member.index), LAST_LINES)
        if not own and member.role == "worker":
            own = lines_of_rank(mpirun_text, member.index, LAST_LINES)
        return own


def _explains_nothing(member: Member) -> bool:
    return member.error is None and member.exit_status is None
