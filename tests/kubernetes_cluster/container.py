"""A container that is a process of this machine, with its own network, host name, mounts and process numbers, and with
a limit of its memory if this machine can set one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hosts.network import BRIDGE, INTERFACE
from tests.kubernetes_cluster.memory_limit import MemoryLimit

# Waits until the network is attached, and then replaces itself with the command of the container.
SETUP = """read go || exit 1
set -e
{limit}
ip link set lo up
ip address add {address}/16 dev {interface}
ip link set {interface} up
hostname {host}
mount --bind {hosts} /etc/hosts
{mounts}
exec "$@"
"""
POLL_SECS = 0.1
# What a kubelet reads: an escaped `$`, and a reference to a variable.
REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")


@dataclass(frozen=True)
class Place:
    """What the node gives a container: its host name, its address, and the file of all names."""

    host: str
    address: str
    hosts: Path
    number: int


def expanded(word: str, env: Mapping[str, str]) -> str:
    """Returns a word in which `$(NAME)` is replaced with a variable, and `$$` with `$`, as a kubelet does."""
    return REFERENCE.sub(lambda found: "$" if found[0] == "$$" else env.get(found[1], found[0]), word)


class Container:
    """Runs `argv` as process 1. `mounts` maps folders in the container to folders of this machine. `take` gets each
    line of its output. If the kernel ends a process because it needs more memory than `limit`, all end, as with a
    kubelet."""

    def __init__(
        self,
        place: Place,
        argv: Sequence[str],
        env: Mapping[str, str],
        mounts: Mapping[str, Path],
        take: Callable[[str], None],
        limit: MemoryLimit | None = None,
    ) -> None:
        self._is_killed = False
        self._limit = limit
        lines = [f"mount --bind {source} {path}" for path, source in mounts.items()]
        setup = SETUP.format(
            address=place.address,
            interface=INTERFACE,
            host=place.host,
            hosts=place.hosts,
            mounts="\n".join(lines),
            limit="" if limit is None else limit.shell_line,
        )
        # The thread that starts a pod waits for its end. If this program is killed, no pod stays behind.
        unshare = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--net",
            "--uts",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "--mount-proc",
        ]
        words = [expanded(word, env) for word in argv]
        self._process = subprocess.Popen(
            [*unshare, "sh", "-c", setup, "sh", *words],
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(take,), daemon=True)
        self._reader.start()
        self._attach(place.number)

    def _attach(self, number: int) -> None:
        outer, pid = f"k{number}", str(self._process.pid)
        while os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            assert self._process.poll() is None
        make = ["ip", "link", "add", outer, "type", "veth", "peer", "name", INTERFACE, "netns", pid]
        subprocess.run(make, check=True)
        subprocess.run(["ip", "link", "set", outer, "master", BRIDGE, "up"], check=True)
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.close()

    def _read(self, take: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            take(line.rstrip("\n"))

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to process 1 of the container."""
        pid = self._process.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return
        self._is_killed = self._is_killed or number == signal.SIGKILL
        for child in children:
            os.kill(int(child), number)

    @property
    def is_out_of_memory(self) -> bool:
        """Whether it has needed more memory than its limit."""
        return self._limit is not None and self._limit.has_killed

    def wait(self) -> int:
        """Waits for the end of process 1, and returns the exit status that a kubelet shows."""
        while (status := self._process.poll()) is None:
            if self.is_out_of_memory:
                self.signal(signal.SIGKILL)
            time.sleep(POLL_SECS)
        self._reader.join(5)
        if self._is_killed and status:  # unshare cannot end by the signal that has ended its child
            return 128 + signal.SIGKILL
        return status if status >= 0 else 128 - status
