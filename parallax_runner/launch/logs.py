"""The logs of a run's processes: their paths, redirection, and last lines."""

import io
import logging
import os
import re
import sys
from pathlib import Path

from parallax_runner.errors import ConfigError, Setting
from parallax_runner.files.in_place import fault_of_place, open_in_place
from parallax_runner.files.regular import open_regular

TAIL_BYTES = 64 * 1024
INDEXED = re.compile(r"(worker|server)_\d+\.log")


def log_path(run_dir: str | Path, role: str, index: int) -> Path:
    """Returns the path of a log, for example `run_dir/logs/worker_0.log`. The program that starts all workers has no
    index in its path: `mpirun.log`."""
    name = f"{role}_{index}.log" if role in ("worker", "server") else f"{role}.log"
    return Path(run_dir) / "logs" / name


def own_logs(run_dir: str | Path, program: str | None) -> list[Path]:
    """Returns the existing logs of this run. `run_dir/logs` can be a symbolic link to a folder that also contains other
    files. `program` is the program that starts all workers."""
    without_index = {log_path(run_dir, role, 0).name for role in ("driver", program) if role is not None}
    return sorted(
        path
        for path in (Path(run_dir) / "logs").glob("*.log")
        if path.name in without_index or INDEXED.fullmatch(path.name)
    )


def redirect_logs(run_dir: str | Path, path: str | Path | None) -> None:
    """Makes `run_dir/logs` a symbolic link to the folder `path`, so that all processes write there. If `path` is None,
    `run_dir/logs` is a normal folder.

    Raises ConfigError if `run_dir/logs` contains the logs of an earlier run, or if there is a link in the place of a
    log.
    """
    _link_logs(run_dir, path)
    for log in own_logs(run_dir, None):
        fault = fault_of_place(log)
        if fault is not None:
            raise ConfigError(f"{log}: {fault}")


def _link_logs(run_dir: str | Path, path: str | Path | None) -> None:
    logs = Path(run_dir) / "logs"
    if logs.is_symlink():
        logs.unlink()
    if path is None:
        return
    if logs.exists():
        raise ConfigError(f"{logs} contains an earlier run's logs: choose another run_dir").about(
            Setting.of("redirect_path", path)
        )
    Path(path).mkdir(parents=True, exist_ok=True)
    logs.parent.mkdir(parents=True, exist_ok=True)
    logs.symlink_to(Path(path).resolve(), target_is_directory=True)


class LogFile(logging.FileHandler):
    """A log file that reports write errors, such as a full disk, only once. A run continues even if its log cannot be
    written."""

    _failed = False

    def _open(self) -> io.TextIOWrapper:
        return open(open_in_place(self.baseFilename, os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:
        """Reports once on stderr that lines are lost."""
        if not self._failed:
            self._failed = True
            print(f"parallax_runner: {self.baseFilename} cannot be written: {sys.exc_info()[1]}", file=sys.stderr)


def redirect_output(path: str | Path) -> None:
    """Redirects this process's stdout and stderr, including the output of C libraries and child processes, to the end
    of the file `path`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    target = open_in_place(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)


def last_lines(path: str | Path, n: int = 20, *, start: int = 0) -> tuple[str, ...]:
    """Returns the last `n` lines of the part of a log that begins at byte `start`, or no lines if the log cannot be
    read. Reads at most the last 64 KiB of the log."""
    try:
        with open_regular(Path(path)) as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(start, log.tell() - TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ()
    return tuple(text.splitlines()[-n:])
