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
from typing import IO, Any

from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch.hosts import Hosts
from parallax_runner.launch.remote import RemoteCommand, check_command

ANSWER_SECS = 15.0
POLL_SECS = 0.05
# The exit statuses of a shell that cannot execute a program.
NOT_FOUND_STATUSES = (126, 127)


def check_hosts(hosts: Hosts, folders: Sequence[Path], stopped: Callable[[], bool] = lambda: False) -> dict[str, str]:
    """Checks all other machines at the same time, and returns the host name that each of them reports. Returns an
    empty dict early once `stopped()` returns True.

    `folders` must be on a file system that all hosts share. Raises LaunchError for the first host that fails a check.
    """
    with _tokens(folders) as tokens, socket.create_server((hosts.address, 0), backlog=len(hosts.remote)) as listener:
        driver = listener.getsockname()[:2]
        named = [str(token) for token in tokens]
        commands = {
            host: check_command(hosts.remote_shell, host, tokens=named, cwd=os.getcwd(), driver=driver)
            for host in hosts.remote
        }
        with contextlib.ExitStack() as stack:
            asked = {host: stack.enter_context(_Question(command)) for host, command in commands.items()}
            deadline = time.monotonic() + ANSWER_SECS
            while not stopped() and time.monotonic() < deadline and not all(one.ended() for one in asked.values()):
                time.sleep(POLL_SECS)
            if stopped():
                return {}
            return {host: _judge(host, question, hosts) for host, question in asked.items()}


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


def _judge(host: str, question: _Question, hosts: Hosts) -> str:
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
            f"{where} cannot connect to this machine at {hosts.address}: {answer['control']}; workers and servers "
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
