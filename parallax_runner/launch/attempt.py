"""One attempt at a run: starts the processes, tracks which of them are connected, done or lost, and terminates them
all."""

import logging
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Self

from parallax_runner.errors import LaunchError, ParallaxError
from parallax_runner.launch.blame import verdict
from parallax_runner.launch.blame.first_death import DIED_SILENTLY, Failure, Member
from parallax_runner.launch.blame.memory_kills import MemoryKills
from parallax_runner.launch.blame.verdict import Logs
from parallax_runner.launch.control import wire
from parallax_runner.launch.control.server import ControlServer
from parallax_runner.launch.control.wire import Message
from parallax_runner.launch.job import Command, LaunchSpec
from parallax_runner.launch.launchers.launcher import Leaving
from parallax_runner.launch.logs import log_path
from parallax_runner.launch.member_reports import RECORDED, refuse
from parallax_runner.launch.process_tree import end_family
from parallax_runner.launch.proof import LaunchProof, surplus
from parallax_runner.launch.spawn import spawn
from parallax_runner.launch.watch import silence
from parallax_runner.launch.watch.stall import StallWatch
from parallax_runner.launch.watch.stopped import StoppedWatch
from parallax_runner.launch.watch.waiting import waiting_for

log = logging.getLogger(__name__)

TICK_SECS = 0.1
# How long to wait for the last message of a process that has exited.
LAST_WORDS_SECS = 1.0
# How long the driver waits for the other processes to report where they were.
ANSWER_SECS = 1.0
_INTERNAL_KINDS = frozenset({wire.CLOSED, wire.PORT_TAKEN, wire.STANDS, wire.PROOF, wire.INSTALLATION})


@dataclass
class _Child:
    """A process that the driver itself started, and the members that exit when that process exits."""

    process: subprocess.Popen[bytes]
    members: Sequence[Member]
    exited_secs: float | None = None


class Attempt:
    """The processes of one attempt. Use it as a context manager: on exit, it terminates every process. As soon as
    `in_hurry()` returns True, it kills the remaining processes."""

    def __init__(
        self,
        spec: LaunchSpec,
        *,
        on_message: Callable[[Message], Mapping[str, Any] | wire.Answer | None],
        on_tick: Callable[[], None] | None,
        in_hurry: Callable[[], bool],
    ) -> None:
        self._spec = spec
        self._job, self._launcher = spec.job, spec.launcher
        self._in_hurry = in_hurry
        self._on_message = on_message
        self._on_tick = on_tick
        self._control = ControlServer(workers=spec.job.workers, servers=spec.job.servers, host=spec.launcher.address)
        self._workers = [Member("worker", rank) for rank in range(spec.job.workers)]
        self._servers = [Member("server", index) for index in range(spec.job.servers)]
        self._program = None if spec.launcher.program is None else Member(spec.launcher.program, 0)
        self._run = Member("run", 0)
        self._children: list[_Child] = []
        self._logs = Logs(spec.job.run_dir)
        self._clock = silence.AwakeClock()
        self._stall = StallWatch(start_secs=spec.startup_timeout_secs, timeout_secs=spec.stall_timeout_secs)
        self._stopped = StoppedWatch(spec.hang_timeout_secs, spec.launcher.rank_variable)
        self._proof = LaunchProof(spec.job)
        self._memory = MemoryKills(spec.launcher.memory_kills)
        self._servers_may_end = False
        self._cleanup = ExitStack()
        self.done: dict[tuple[str, int], dict[str, Any]] = {}
        self.taken_address: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end_family([child.process for child in self._children], self._control.secret, self._in_hurry)
        self._control.close()
        self._cleanup.close()

    def start(self) -> None:
        """Starts servers, then workers. Raises LaunchError if a command cannot be executed."""
        job = replace(self._job, env={**self._control_environment(), **self._job.env})
        servers, workers = self._launcher.servers(job), self._launcher.workers(job, self._cleanup)
        of_workers = [[one] for one in self._workers] if self._program is None else [[*self._workers, self._program]]
        self._start_each("servers", servers, [[one] for one in self._servers])
        self._start_each("workers", workers, of_workers)

    def pump(self, until: Callable[[], bool], timeout_secs: float | None = None) -> bool:
        """Handles messages until `until()` returns True. Returns False if `timeout_secs` seconds pass first."""
        deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
        while not until():
            if deadline is not None and time.monotonic() > deadline:
                return False
            message = self._control.next_message(TICK_SECS)
            # This loop has a time limit, so that a flood of messages cannot delay the checks for signals and dead
            # processes.
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
        """Asks all live processes what they are executing, and waits at most one second for the answers. With `stacks`,
        the processes also write their Python stacks to their logs."""
        asked = [one for one in self._members() if one.connected and not one.done and one.lost_secs is None]
        for one in asked:
            one.where = one.inside = None
        self._control.ask_where(stacks=stacks)
        self.pump(lambda: all(one.where is not None or not one.connected for one in asked), ANSWER_SECS)

    def has_stall_news(self) -> bool:
        """Returns whether there is anything to report about a stall."""
        return self._stall.is_due

    def stall_news(self) -> str | None:
        """Returns a sentence about the stall: what the workers are doing and which of them wait for others, or that
        steps finish again. After the timeout, marks the attempt as failed. Returns None if the workers' answers show
        that a step has finished in the meantime."""
        was_over = self._stall.is_over
        self.ask_where(stacks=was_over)
        together = self._spec.together
        # The attempt fails only after the workers have been asked for their stacks.
        is_over = was_over and self._stall.is_over
        if not is_over or self.first_lost_secs() is not None:
            return self._stall.news(self._workers, together=together)
        blamed = self._stall.culprit(self._workers, together=together) or self._run
        blamed.verdict = (
            f"{self._stall.news(self._workers, together=together)} "
            f"(train.stall_timeout_secs={self._spec.stall_timeout_secs:g}); the Python stacks of all workers are in "
            f"{self._job.run_dir / 'logs'}"
        )
        blamed.lose(time.monotonic())
        return blamed.verdict

    def any_frozen(self) -> bool:
        """Returns whether the driver has declared a process lost, for example because the process was silent. Such a
        process does not exit on its own."""
        return any(member.verdict is not None for member in self._members())

    def stop_workers(self) -> None:
        """Asks the workers to exit on their own. The servers keep running, because workers may need them in order to
        finish."""
        self._control.stop("worker")

    def stop_servers(self) -> None:
        """Asks the servers to exit. From then on, a server that exits does not count as a failure."""
        self._servers_may_end = True
        self._control.stop("server")

    def leaving(self) -> Leaving | None:
        """Returns a process that has said that it must end, or None."""
        return self._launcher.leaving()

    def ends_early(self) -> bool:
        """Returns whether the attempt should end, so that more workers can start."""
        return self._spec.ends_early()

    def workers_done(self) -> bool:
        """Returns whether every worker has reported that it is done."""
        return all(member.done for member in self._workers)

    def workers_exited(self) -> bool:
        """Returns whether the processes that the driver started for the workers have exited. These processes are mpirun
        or the workers themselves."""
        return all(child.process.poll() is not None for child in self._children if child.members[0].role == "worker")

    def first_lost_secs(self) -> float | None:
        """Returns the monotonic time of the first sign that a process ended prematurely, or None."""
        return min((m.lost_secs for m in self._members() if m.lost_secs is not None), default=None)

    def all_exited(self) -> bool:
        """Returns whether every process that the driver started has exited, with its status recorded, and all
        connections are closed."""
        return all(child.exited_secs is not None for child in self._children) and not self._connected()

    def unfinished(self) -> str:
        """Returns the names of the processes that have not exited, as text for a message."""
        alive = [member for child in self._children if child.process.poll() is None for member in child.members]
        named = [f"{member.role} {member.index}" for member in alive if member.connected]
        return ", ".join(named) or next((one.role for one in alive if one is self._program), "connections")

    def waiting_for(self) -> str:
        """Returns the workers that are not done and what each of them is doing, as text for a message."""
        return waiting_for(self._workers)

    def note_unreported_exits(self) -> None:
        """Records the exit status of workers whose status the launcher's program has not reported. Call this method
        only after the program has had time to report."""
        exit_status = self._launcher.unreported_exit_status
        if self._program is None or exit_status is None:
            return
        if not self.workers_exited() and not silence.is_stopped(self._program):
            verdict.note_unreported_exits(self._workers, exit_status)

    def unexplained(self) -> bool:
        """Returns whether the death of the process to blame is unexplained while a process that could explain it is
        still alive."""
        alive = any(child.exited_secs is None for child in self._children)
        return alive and self.first_failure().reason == DIED_SILENTLY

    def first_failure(self) -> Failure:
        """Returns the failure, which names the process to blame. The result depends on the output of the launcher and
        of that process, so it can change until all processes have exited."""
        failure = verdict.find_failure(
            self._workers, self._servers, self._program, self._run, self._logs, self._launcher
        )
        blamed = next(one for one in self._members() if (one.role, one.index) == (failure.role, failure.index))
        return self._memory.explained(failure, blamed)

    def _members(self) -> list[Member]:
        return [*self._workers, *self._servers, *([self._program] if self._program else []), self._run]

    def _connected(self) -> list[Member]:
        return [member for member in self._members() if member.connected]

    def _control_environment(self) -> dict[str, str]:
        return {
            wire.CONTROL_ADDRESS: self._control.address,
            wire.CONTROL_SECRET: self._control.secret,
            wire.ALIVE_SECS: str(silence.alive_secs(self._spec.hang_timeout_secs)),
            wire.SILENT_SECS: str(silence.driver_silent_secs(self._spec.hang_timeout_secs)),
            wire.STACKS_SECS: str(silence.stacks_secs(self._spec.hang_timeout_secs, self._spec.stall_timeout_secs)),
            wire.RANK_VARIABLE: self._launcher.rank_variable,
        }

    def _start_each(self, method: str, commands: Sequence[Command], members: Sequence[Sequence[Member]]) -> None:
        if len(commands) != len(members):
            name = type(self._launcher).__name__
            raise LaunchError(f"{name}.{method} returns {len(commands)} commands, expected {len(members)}")
        for command, those in zip(commands, members, strict=True):
            self._start(command, those)

    def _start(self, command: Command, members: Sequence[Member]) -> None:
        """Starts a command. All `members` exit when the command's process exits. The last member is that process
        itself."""
        itself = members[-1]
        # The output of the program that starts all workers is parsed for this attempt, so it must not contain the
        # output of an earlier attempt.
        process = spawn(command, log_path(self._job.run_dir, itself.role, itself.index), anew=itself is self._program)
        self._children.append(_Child(process, members))
        if itself is self._program:
            itself.pid, itself.host = process.pid, socket.gethostname()
        log.info("started pid %d: %s", process.pid, " ".join(command.argv))

    def _take(self, message: Message) -> None:
        if message.kind == wire.SURPLUS:
            self._take_surplus(message)
            return
        member = (self._workers if message.role == "worker" else self._servers)[message.index]
        member.silent_secs = 0.0
        if message.kind in RECORDED:
            RECORDED[message.kind](member, message)
        elif message.kind == wire.DONE:
            self._take_done(member, message)
        elif message.kind == wire.PROOF:
            self._take_proof(member, message)
        elif message.kind == wire.PORT_TAKEN:
            self.taken_address = str(message.fields.get("address"))
        if message.kind not in _INTERNAL_KINDS:
            self._tell(message, member)

    def _tell(self, message: Message, member: Member) -> None:
        """Passes a message to the callback. If the callback raises an error because the run cannot continue, the error
        is attributed to the process that sent the message."""
        try:
            order = self._on_message(message)
        except ParallaxError as error:
            member.error, member.parts = str(error), error.parts
            member.recurs, member.wanted_status = True, error.exit_status
            member.lose(message.received_secs)
            return
        if isinstance(order, wire.Answer):
            self._control.answer(order)
        elif order is not None:
            self._stall.begin_again()
            self._control.order(order)

    def _take_proof(self, member: Member, message: Message) -> None:
        fault = self._launcher.misplaced(message.role, message.index, message.host) or self._proof.take(
            message.role, message.index, message.fields
        )
        refuse(member, message, fault)
        if self._proof.is_complete:
            self._control.tell_proven()

    def _take_surplus(self, message: Message) -> None:
        """Fails the whole run, because the plan has no place for the surplus process."""
        role, index = message.role, message.index
        pid = next((one.pid for one in self._members() if (one.role, one.index) == (role, index)), None)
        self._run.recurs = True
        self._run.verdict = surplus(self._job, f"{role} {index}", message.fields.get("pid"), message.host, beside=pid)
        self._run.lose(message.received_secs)

    def _take_done(self, member: Member, message: Message) -> None:
        if member.role == "server" and not self._servers_may_end:
            member.error = "ended before the workers were done"
            member.lose(message.received_secs)
            return
        member.done = True
        self.done[member.role, member.index] = message.fields

    def _look_at_processes(self) -> None:
        now = time.monotonic()
        self._memory.look_at((*self._workers, *self._servers))
        for child in self._children:
            status = child.process.poll()
            if status is None:
                continue
            if child.exited_secs is None:
                child.exited_secs = now
                self._note_exit(child.members[-1], status, now)
            # Usually, a member is marked as lost when its connection ends. This check is for members that never had a
            # connection, and for members whose forked child keeps the connection open. If the driver is behind, the
            # last words may still be unread.
            if now - child.exited_secs > LAST_WORDS_SECS and not self._control.has_messages():
                for member in child.members:
                    if not member.done and member is not self._program:
                        member.lose(child.exited_secs)

    def _note_exit(self, itself: Member, status: int, now: float) -> None:
        """Records the exit status of a process that the driver started. The status of a program that starts all workers
        describes only that program, not the workers."""
        itself.exit_status = status
        itself.is_gone = itself is not self._program and status == self._launcher.lost_exit_status
        if itself is self._program and status < 0:
            # The program itself was killed by a signal. If a worker had died, the program's status would be positive.
            itself.lose(now)

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
