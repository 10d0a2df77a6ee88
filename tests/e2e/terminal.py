"""A pseudo terminal, and what stands on its screen: no more than a program with a progress bar asks of one."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

ROWS, COLUMNS = 50, 120
CONTROL = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|[\r\n\x08\x07]|[^\x1b\r\n\x08\x07]+|\x1b")


class Screen:
    """Lines as a terminal without scrolling shows them; colours are ignored, and long lines are not wrapped."""

    def __init__(self) -> None:
        self.lines = [""]
        self._row = self._column = 0

    @property
    def text(self) -> str:
        """All of it, without blanks at the ends of lines."""
        return "\n".join(line.rstrip() for line in self.lines)

    def write(self, text: str) -> None:
        """Takes what a program has written."""
        for found in CONTROL.finditer(text):
            argument, letter = found.groups()
            if letter is not None:
                self._obey(letter, int(argument) if argument.isdecimal() else None)
            elif found[0] == "\r":
                self._column = 0
            elif found[0] == "\n":
                self._row, self._column = self._row + 1, 0
                self.lines += [""] * (self._row + 1 - len(self.lines))
            elif found[0] >= " ":
                self._put(found[0])

    def _put(self, text: str) -> None:
        line = self.lines[self._row].ljust(self._column)
        self.lines[self._row] = line[: self._column] + text + line[self._column + len(text) :]
        self._column += len(text)

    def _obey(self, letter: str, argument: int | None) -> None:
        if letter == "A":
            self._row = max(0, self._row - (argument or 1))
        elif letter == "K" and argument == 2:
            self.lines[self._row] = ""
        elif letter not in "mhl":
            raise AssertionError(f"the screen knows no {argument}{letter}")


def run(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout_secs: float,
    on_screen: Callable[[Screen], bytes | None] = lambda screen: None,
) -> tuple[int, Screen]:
    """Runs a command on a terminal of its own: its exit status and the screen at its end.

    `on_screen` is shown the screen after each piece of output; what it returns is typed.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            os.chdir(cwd)
            os.execvpe(command[0], list(command), {**env, "TERM": "xterm-256color"})
        finally:
            os._exit(127)
    screen, deadline = Screen(), time.monotonic() + timeout_secs
    os.set_blocking(terminal, False)
    waiting = b""
    try:
        while True:
            try:
                piece = os.read(terminal, 65536)
            except BlockingIOError:
                assert time.monotonic() < deadline, f"still running:\n{screen.text}"
                time.sleep(0.02)
                continue
            except OSError:  # what Linux says when nobody has the terminal open any more
                piece = b""
            if not piece:
                break
            whole, waiting = _whole(waiting + piece)
            screen.write(whole)
            typed = on_screen(screen)
            if typed:
                os.write(terminal, typed)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), screen
    except BaseException:
        _kill(pid)
        raise
    finally:
        os.close(terminal)


def _whole(text: bytes) -> tuple[str, bytes]:
    """What can be shown already, and the rest: a character or a control sequence may come in two pieces."""
    end = len(text)
    escape = text.rfind(b"\x1b")
    if escape >= 0 and not re.match(rb"\x1b\[[?\d;]*[A-Za-z]", text[escape:]):
        end = escape
    while end and len(text) - end < 4:
        try:
            return text[:end].decode(), text[end:]
        except UnicodeDecodeError:
            end -= 1
    return text[:end].decode(errors="replace"), text[end:]


def _kill(pid: int) -> None:
    family = [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
    for process in family:
        process.kill()
    os.waitpid(pid, 0)
