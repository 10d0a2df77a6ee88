"""One attempt at a run: starts the processes, keeps account of who is there, done or lost, and ends them all."""

import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from parallax_runner.errors import ParallaxError
from parallax_runner.launch import mpirun_folders, remote
from parallax_runner.launch.blame import verdict
from parallax_runner.launch.blame.first_death import DIED_SILENTLY, Failure, Member
from parallax_runner.launch.blame.verdict import Logs
from parallax_runner.launch.command import Command
from parallax_runner.launch.control import wire
from parallax_runner.launch.control.server import ControlServer
from parallax_runner.launch.control.wire import Message
from parallax_runner.launch.family import end_family
from parallax_runner.launch.logs import log_path
from parallax_runner.launch.own_folder import OwnFolder
from parallax_runner.launch.spawn import spawn
from parallax_runner.launch.spec import LaunchSpec
from parallax_runner.launch.watch import silence
from parallax_runner.launch.watch.stall import StallWatch
from parallax_runner.launch.watch.stopped import StoppedWatch
from parallax_runner.launch.watch.waiting import waiting_for

log = logging.getLogger(__name__)

TICK_SECS = 0.1
# How long a process that has exited may have last words on their way through its connection.
LAST_WORDS_SECS = 1.0
# How long the others may take to say where they stood.
ANSWER_SECS = 1.0
_INTERNAL_KINDS = frozenset({wire.CLOSED, wire.PORT_TAKEN, wire.STANDS})


@dataclass
class _Child:
    """A process the driver itself started, and the members that end with it."""

    process: subprocess.Popen[bytes]
    members: Sequence[Member]
    exited_secs: float | None = None


class Attempt:
    """The processes of one attempt. Use as a context manager: leaving it ends every process, whatever happened, and
    without patience once `in_hurry()` holds."""

    def __init__(
        self,
        spec: LaunchSpec,
        *,
        on_message: Callable[[Message], Mapping[str, Any] | None],
        on_tick: Callable[[], None] | None,
        in_hurry: Callable[[], bool],
    ) -> None:
        self._spec = spec
        self._in_hurry = in_hurry
        self._on_message = on_message
        self._on_tick = on_tick
        self._control = ControlServer(workers=spec.workers, servers=spec.servers, host=spec.address)
        self._workers = [Member("worker", rank) for rank in range(spec.workers)]
        self._servers = [Member("server", index) for index in range(spec.servers)]
        self._mpirun = Member("mpirun", 0)
        self._run = Member("run", 0)
        self._children: list[_Child] = []
        self._logs = Logs(spec.run_dir)
        self._clock = silence.AwakeClock()
        self._stall = StallWatch(start_secs=spec.startup_timeout_secs, timeout_secs=spec.stall_timeout_secs)
        self._stopped = StoppedWatch(spec.hang_timeout_secs)
        self._servers_may_end = False
        self._mpirun_folders: list[OwnFolder] = []
        self.done: dict[tuple[str, int], dict[str, Any]] = {}
        self.taken_address: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end_family([child.process for child in self._children], self._control.secret, self._in_hurry)
        self._control.close()
        for folder in self._mpirun_folders:
            folder.remove()

    def start(self) -> None:
        """Starts servers, then workers. Raises LaunchError if a command cannot be executed."""
        for member, command in zip(self._servers, self._spec.server, strict=True):
            self._start(command, [member], "server", host=self._spec.host_of_server(member.index))
        if self._spec.under_mpirun:
            self._start(self._spec.worker, [*self._workers, self._mpirun], "mpirun")
        else:
            self._start(self._spec.worker, self._workers, "worker")

    def pump(self, until: Callable[[], bool], timeout_secs: float | None = None) -> bool:
        """Handles what comes in until `until()` holds; False if `timeout_secs` passed first."""
        deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
        while not until():
            if deadline is not None and time.monotonic() > deadline:
                return False
            message = self._control.next_message(TICK_SECS)
            # However much they have to say: signals and deaths are looked for as often.
            tick_ends = time.monotonic() + TICK_SECS
            while message is not None:
                self._take(message)
                message = self._control.next_message(0.0) if time.monotonic() < tick_ends else None
            self._look_at_processes()
            self._look_at_clock()
            if self._on_tick is not None:
                self._on_tick()
        return True

    def ask_where(self, *, stacks: bool = False) -> None:
        """Asks all others where they stand, and waits a second at most for the answers. With `stacks` they also write
        their Python stacks into their logs."""
        asked = [one for one in self._members() if one.connected and not one.done and one.lost_secs is None]
        for one in asked:
            one.where = one.inside = None
        self._control.ask_where(stacks=stacks)
        self.pump(lambda: all(one.where is not None or not one.connected for one in asked), ANSWER_SECS)

    def has_stall_news(self) -> bool:
        """Whether something is to be said of steps that do not end."""
        return self._stall.is_due

    def stall_news(self) -> str | None:
        """A sentence of who is in which step, and who waits for whom; after the time-out the attempt has failed. None
        where the answers tell that a step has ended meanwhile, and there is nothing to say."""
        was_over = self._stall.is_over
        self.ask_where(stacks=was_over)
        together = self._spec.together
        # Without the stacks of all workers it has not failed yet.
        is_over = was_over and self._stall.is_over
        if not is_over or self.first_lost_secs() is not None:
            return self._stall.news(self._workers, together=together)
        blamed = self._stall.culprit(self._workers, together=together) or self._run
        blamed.verdict = (
            f"{self._stall.news(self._workers, together=together)} "
            f"(train.stall_timeout_secs={self._spec.stall_timeout_secs:g}); the Python stacks of all workers are in "
            f"{self._spec.run_dir / 'logs'}"
        )
        blamed.lose(time.monotonic())
        return blamed.verdict

    def any_frozen(self) -> bool:
        """Whether some process was lost because it was silent: it will not end by itself."""
        return any(member.verdict is not None for member in self._members())

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
        """Whether every process the driver started has exited, its status is noted, and all connections are closed."""
        return all(child.exited_secs is not None for child in self._children) and not self._connected()

    def unfinished(self) -> str:
        """The processes that have not ended, for a message."""
        alive = [member for child in self._children if child.process.poll() is None for member in child.members]
        named = [f"{member.role} {member.index}" for member in alive if member.connected]
        return ", ".join(named) or ("mpirun" if self._mpirun in alive else "connections")

    def waiting_for(self) -> str:
        """The workers that are not done and what each is at, for a message."""
        return waiting_for(self._workers)

    def note_quiet_exits(self) -> None:
        """When mpirun has had time to say how a rank ended, and goes on: then the rank's exit status is 0."""
        goes_on = self._spec.under_mpirun and self._children[-1].process.poll() is None
        if goes_on and not silence.is_stopped(self._mpirun):
            verdict.note_quiet_exits(self._workers)

    def unexplained(self) -> bool:
        """Whether nobody can say yet how the process to blame ended, while one that may still tell is alive."""
        alive = any(child.exited_secs is None for child in self._children)
        return alive and self.first_failure().reason == DIED_SILENTLY

    def first_failure(self) -> Failure:
        """The process to blame; reads what mpirun and the process wrote, so best asked when all have exited."""
        mpirun = self._mpirun if self._spec.under_mpirun else None
        return verdict.find_failure(self._workers, self._servers, mpirun, self._run, self._logs)

    def _members(self) -> list[Member]:
        return [*self._workers, *self._servers, self._mpirun, self._run]

    def _connected(self) -> list[Member]:
        return [member for member in self._members() if member.connected]

    def _start(self, command: Command, members: Sequence[Member], role: str, *, host: str | None = None) -> None:
        """Starts a command, on another machine where `host` names one."""
        log_name = log_path(self._spec.run_dir, role, members[0].index)
        env = {
            **command.env,
            wire.CONTROL_ADDRESS: self._control.address,
            wire.CONTROL_SECRET: self._control.secret,
            wire.ALIVE_SECS: str(silence.alive_secs(self._spec.hang_timeout_secs)),
            wire.STACKS_SECS: str(silence.stacks_secs(self._spec.hang_timeout_secs, self._spec.stall_timeout_secs)),
        }
        argv, said = command.argv, b""
        if host is not None:
            assert self._spec.hosts is not None
            env = remote.passed_on() | env
            argv, said = remote.start_command(
                self._spec.hosts.remote_shell, host, argv=command.argv, env=env, cwd=os.getcwd()
            )
        # mpirun ends its ranks when told to end; a server has nobody to tell. And mpirun's output is read as facts of
        # this attempt, so an earlier one's must not stand there.
        is_mpirun = self._mpirun in members
        if is_mpirun:
            made = mpirun_folders.make_folders(argv, alone=self._spec.hosts is None)
            self._mpirun_folders += made.values()
            env |= {variable: str(folder.path) for variable, folder in made.items()}
        last_signal = signal.SIGTERM if is_mpirun else signal.SIGKILL
        process = spawn(argv, env, log_name, said=said, last_signal=int(last_signal), anew=is_mpirun)
        self._children.append(_Child(process, members))
        if is_mpirun:
            self._mpirun.pid, self._mpirun.host = process.pid, socket.gethostname()
        log.info("started pid %d: %s", process.pid, " ".join(argv))

    def _take(self, message: Message) -> None:
        member = (self._workers if message.role == "worker" else self._servers)[message.index]
        member.silent_secs = 0.0
        if message.kind == wire.HELLO:
            member.said_hello, member.connected, member.host = True, True, message.host
            member.pid = message.fields.get("pid")
        elif message.kind in (wire.ALIVE, wire.STANDS):
            _note_standing(member, message.fields)
        elif message.kind == wire.DONE:
            self._take_done(member, message)
        elif message.kind == wire.FAIL:
            member.error = str(message.fields.get("error", "failed without saying why"))
            member.traceback = str(message.fields.get("traceback", ""))
            member.recurs = bool(message.fields.get("recurs"))
            member.wanted_status = message.fields.get("exit_status")
            _note_standing(member, message.fields)
            member.lose(message.received_secs)
        elif message.kind == wire.PORT_TAKEN:
            self.taken_address = str(message.fields.get("address"))
        elif message.kind == wire.CLOSED:
            member.connected = False
            if not member.done:
                member.lose(message.received_secs)
        if message.kind not in _INTERNAL_KINDS:
            self._tell(message, member)

    def _tell(self, message: Message, member: Member) -> None:
        """Hands a message on. Where it says that the run cannot go on, that is its process's failure."""
        try:
            order = self._on_message(message)
        except ParallaxError as error:
            member.error, member.recurs, member.wanted_status = str(error), True, error.exit_status
            member.lose(message.received_secs)
            return
        if order is not None:
            self._stall.begin_again()
            self._control.order(order)

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
                if child.members[-1] is self._mpirun and status < 0:
                    # A signal came for itself: after a rank's death its status is positive.
                    self._mpirun.lose(now)
            # A connection says itself when it is closed; this is for those that never had one, or left it to a fork.
            if now - child.exited_secs > LAST_WORDS_SECS:
                for member in child.members:
                    if not member.done and member is not self._mpirun:
                        member.lose(child.exited_secs)

    def _look_at_clock(self) -> None:
        passed_secs = self._clock.tick()
        for member in (*self._workers, *self._servers):
            member.silent_secs += passed_secs
            if not member.said_hello and self._clock.awake_secs >= self._spec.startup_timeout_secs:
                member.verdict = member.verdict or f"did not start within {self._spec.startup_timeout_secs:.0f} s"
                member.lose(time.monotonic())
        started = [(child.process.pid, child.members) for child in self._children if child.process.poll() is None]
        self._stopped.look(started, passed_secs)
        self._stall.look(self._workers, passed_secs)
        silence.judge((*self._workers, *self._servers), self._spec.hang_timeout_secs)


def _note_standing(member: Member, fields: dict[str, Any]) -> None:
    member.doing = fields.get("doing", member.doing)
    member.doing_secs = fields.get("doing_secs", member.doing_secs)
    member.step = fields.get("step", member.step)
    member.where = fields.get("where", member.where)
    member.inside = fields.get("inside", member.inside)
