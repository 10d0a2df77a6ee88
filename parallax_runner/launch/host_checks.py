"""Checks, before processes start, that each host can be reached, sees the run's files and can reach the driver."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Self

from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch.hosts import Hosts
from parallax_runner.launch.remote import RemoteCommand, check_command, memory_command

ANSWER_SECS = 15.0
# After the loss of a process, its host may be lost too, and the user waits for the message.
MEMORY_SECS = 5.0
POLL_SECS = 0.05
# How long a run waits for a host that it has used before. A host that restarts needs some minutes.
RETURNS_SECS = 900.0
# The exit statuses of a shell that cannot execute a program.
NOT_FOUND_STATUSES = (126, 127)


def check_hosts(hosts: Hosts, folders: Sequence[Path], stopped: Callable[[], bool] = lambda: False) -> dict[str, str]:
    """Checks all other machines at the same time, and returns the host name that each of them reports. Returns an
    empty dict early once `stopped()` returns True.

    `folders` must be on a file system that all hosts share. Raises LaunchError for the first host that fails a check.
    """
    with HostChecks(hosts.remote, hosts.remote_shell, hosts.address, folders) as checks:
        checks.wait(stopped)
        if stopped():
            return {}
        return {host: checks.name_of(host) for host in hosts.remote}


def memory_kills_on(host: str, remote_shell: str) -> int | None:
    """Returns how many processes the kernel of another host has ended because memory ran out, or None if the host does
    not answer within `MEMORY_SECS`."""
    deadline_secs = time.monotonic() + MEMORY_SECS
    with _Question(memory_command(remote_shell, host)) as question:
        while not question.ended() and time.monotonic() < deadline_secs:
            time.sleep(POLL_SECS)
        answer = question.answer() if question.ended() else None
    found = None if answer is None else answer.get("memory_kills")
    return found if isinstance(found, int) else None


class HostChecks:
    """Checks of other machines that run at the same time. Leaving the context ends them.

    `folders` must be on a file system that all hosts share, and `address` is this machine's address.
    """

    def __init__(self, names: Sequence[str], remote_shell: str, address: str, folders: Sequence[Path]) -> None:
        self._names, self._remote_shell, self._address, self._folders = tuple(names), remote_shell, address, folders
        self._asked: dict[str, _Question] = {}
        self._stack = contextlib.ExitStack()
        self._deadline_secs = 0.0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opening:
            tokens = [str(token) for token in opening.enter_context(_tokens(self._folders))]
            listener = opening.enter_context(socket.create_server((self._address, 0), backlog=len(self._names)))
            driver = listener.getsockname()[:2]
            for host in self._names:
                command = check_command(self._remote_shell, host, tokens=tokens, cwd=os.getcwd(), driver=driver)
                self._asked[host] = opening.enter_context(_Question(command))
            self._stack = opening.pop_all()
        self._deadline_secs = time.monotonic() + ANSWER_SECS
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait(self, stopped: Callable[[], bool]) -> None:
        """Waits until the checks are over. Returns early once `stopped()` returns True."""
        while not stopped() and not self.are_over():
            time.sleep(POLL_SECS)

    def are_over(self) -> bool:
        """Returns whether all hosts have answered, or the time for answers is over."""
        return time.monotonic() > self._deadline_secs or all(one.ended() for one in self._asked.values())

    def name_of(self, host: str) -> str:
        """Returns the host name that a host reports. Raises LaunchError if it has failed a check, or not answered."""
        return _judge(host, self._asked[host], self._address)


class _Question:
    """A check that runs on one host. Leaving the context kills the remote shell."""

    def __init__(self, command: RemoteCommand) -> None:
        self.argv = command.argv
        self._said = command.said

    def __enter__(self) -> _Question:
        with contextlib.ExitStack() as opening:
            self._files: list[IO[bytes]] = [opening.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            opening.pop_all()
        self._files[0].write(self._said)
        self._files[0].seek(0)
        given, out, errors = self._files
        try:
            self._process = subprocess.Popen(self.argv, stdin=given, stdout=out, stderr=errors, start_new_session=True)
        except OSError as error:
            about = Setting("cluster.remote_shell", None)
            raise LaunchError(f"cannot start {self.argv[0]}: {error}").about(about) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for file in self._files:
            file.close()

    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def status(self) -> int | None:
        return self._process.poll()

    def answer(self) -> dict[str, Any] | None:
        """Returns the host's answer, or None if the output of the command contains no answer."""
        for line in reversed(self._text(1).splitlines()):  # login scripts may print lines before the answer
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(line)
                if isinstance(found, dict):
                    return found
        return None

    def complaint(self) -> str:
        """Returns the last line of stderr."""
        return (self._text(2).strip().splitlines() or [""])[-1]

    def _text(self, number: int) -> str:
        self._files[number].seek(0)
        return self._files[number].read().decode(errors="replace")


def _judge(host: str, question: _Question, address: str) -> str:
    """Returns the host name that the host reports. Raises LaunchError if the host fails a check."""
    where = f"host {host!r} in cluster.resource_info"
    answer = question.answer() if question.ended() else None
    if answer is None:
        if question.status is None:
            reason = f"no answer within {ANSWER_SECS:.0f} s"
        elif question.status in NOT_FOUND_STATUSES:
            raise LaunchError(
                f"{where} cannot start {sys.executable}: {question.complaint()}; all hosts need the same installation "
                "at the same path, for example on a shared file system"
            )
        else:
            reason = question.complaint() or f"exit status {question.status}"
        shell = shlex.join([*question.argv[:-1], "true"])
        raise LaunchError(f"{where} cannot be reached: {reason}; expected «{shell}» to work without a prompt")
    if answer["unseen"]:
        folder = Path(answer["unseen"][0]).parent
        raise LaunchError(
            f"{where} does not see the files that this machine writes to {folder}: run_dir and ckpt.dir must be on a "
            "file system that all hosts share; set hydra.run.dir=… (or ckpt.dir=…) to a folder on such a system"
        )
    if answer["unwritable"]:
        raise LaunchError(
            f"{where} cannot write to {Path(answer['unwritable'][0]).parent}: its processes write logs and checkpoints "
            "there, so mount the file system for writing on all hosts"
        )
    if not answer["has_cwd"]:
        raise LaunchError(f"{where} has no folder {os.getcwd()}: start the run in a folder that all hosts share")
    if answer["control"] is not None:
        raise LaunchError(
            f"{where} cannot connect to this machine at {address}: {answer['control']}; workers and servers "
            "need TCP connections to the driver and to one another, on any port"
        )
    return str(answer["host"])


@contextlib.contextmanager
def _tokens(folders: Sequence[Path]) -> Iterator[list[Path]]:
    """Creates a new file in each folder and removes it afterwards."""
    tokens = [folder / f".seen-by-all-hosts-{secrets.token_hex(8)}" for folder in dict.fromkeys(folders)]
    try:
        for token in tokens:
            token.touch()
        yield tokens
    finally:
        for token in tokens:
            token.unlink(missing_ok=True)
