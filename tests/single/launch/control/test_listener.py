"""Connections from strangers: they cannot use up what others need."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from parallax_runner.launch.control import listener as listening
from parallax_runner.launch.control.listener import Listener, affordable_strangers

PASSWORD = b"password"


def greet(connection: socket.socket, know: Callable[[], None]) -> None:
    """Answers whoever knows the password, as long as it stays."""
    connection.settimeout(20.0)
    try:
        if connection.recv(len(PASSWORD)) != PASSWORD:
            return
        know()
        connection.sendall(b"hello")
        connection.recv(1)
    except OSError:
        return


@pytest.fixture
def server() -> Iterator[tuple[Listener, tuple[str, int]]]:
    sock = socket.create_server(("127.0.0.1", 0), backlog=64)
    made = Listener(sock, greet, name="test", most_strangers=4)
    yield made, sock.getsockname()
    made.close()


def connected(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=10.0)


def heard(one: socket.socket) -> bytes:
    one.sendall(PASSWORD)
    return one.recv(5)


def test_the_oldest_stranger_makes_room(server: tuple[Listener, tuple[str, int]]) -> None:
    made, address = server
    known = []
    for _ in range(6):
        known.append(connected(address))
        assert heard(known[-1]) == b"hello"
    strangers = [connected(address) for _ in range(7)]
    assert [one.recv(1) for one in strangers[:3]] == [b""] * 3
    assert heard(strangers[-1]) == b"hello"
    assert made.strangers == 3
    for one in known + strangers:
        one.close()


def test_without_threads_for_others_the_oldest_stranger_makes_room(
    server: tuple[Listener, tuple[str, int]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two threads are all that this user may start."""
    _, address = server
    monkeypatch.setattr(listening, "FAIR_SECS", 0.3)
    running = threading.Semaphore(2)
    start, run = threading.Thread.start, threading.Thread.run

    def start_if_allowed(self: threading.Thread) -> None:
        if self.name == "test-read" and not running.acquire(blocking=False):
            raise RuntimeError("can't start new thread")
        start(self)

    def run_and_release(self: threading.Thread) -> None:
        run(self)
        if self.name == "test-read":
            running.release()

    monkeypatch.setattr(threading.Thread, "start", start_if_allowed)
    monkeypatch.setattr(threading.Thread, "run", run_and_release)
    strangers = [connected(address) for _ in range(4)]
    assert heard(connected(address)) == b"hello"
    assert strangers[0].recv(1) == b""
    for one in strangers:
        one.close()
    assert caplog.text.count("test connections cannot be accepted at the moment: can't start new thread") == 1


def test_without_descriptors_nobody_spins_and_others_are_served_in_time() -> None:
    code = (
        "import resource, socket, sys, time\n"
        "from parallax_runner.launch.control.listener import Listener\n"
        "sock = socket.create_server(('127.0.0.1', 0), backlog=64)\n"
        "def serve(connection, know):\n"
        "    connection.settimeout(60)\n"
        "    if connection.recv(8) == b'password': know(); connection.sendall(b'hello'); connection.recv(1)\n"
        "made = Listener(sock, serve, name='test', most_strangers=1000)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))\n"
        "print(sock.getsockname()[1], flush=True)\n"
        "sys.stdin.readline()\n"
        "print(time.process_time(), flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        address = ("127.0.0.1", int(process.stdout.readline()))
        begin = time.monotonic()
        strangers = [connected(address) for _ in range(20)]
        one = connected(address)
        one.settimeout(60.0)
        assert heard(one) == b"hello"
        process.stdin.write("end\n")
        process.stdin.flush()
        cpu_secs = float(process.stdout.readline())
        took_secs = time.monotonic() - begin
        process.kill()
        assert "Too many open files" in process.stderr.read()
    for stranger in [*strangers, one]:
        stranger.close()
    assert took_secs < 30.0
    assert cpu_secs < 1.0 + 0.3 * took_secs


def test_closing_ends_the_strangers(server: tuple[Listener, tuple[str, int]]) -> None:
    made, address = server
    one = connected(address)
    while not made.strangers:
        time.sleep(0.01)
    made.close()
    assert one.recv(1) == b""
    with pytest.raises(OSError, match="refused"):
        connected(address)


@pytest.mark.parametrize(
    ("descriptors", "strangers"), [(64, 16), (1024, 256), (1 << 20, 256), (2, 1), (resource.RLIM_INFINITY, 256)]
)
def test_strangers_may_take_a_quarter_of_the_descriptors(
    descriptors: int, strangers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening.resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert affordable_strangers() == strangers
