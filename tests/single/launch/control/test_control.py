import json
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from parallax_runner.collectives.backend import Awaited
from parallax_runner.errors import ErrorParts, LaunchError, Setting
from parallax_runner.launch.control import client as client_module
from parallax_runner.launch.control import server as control_module
from parallax_runner.launch.control import wire
from parallax_runner.launch.control.activity import STARTING, Activity, Kind
from parallax_runner.launch.control.client import ControlClient, rank_from_environ
from parallax_runner.launch.control.server import ControlServer
from parallax_runner.launch.control.wire import Message

ALIVE = (
    b'{"kind": "alive", "doing": {"kind": "STEP", "step": 4}, "doing_secs": 1.0, "step": 3, "awaited": %s, '
    b'"peak_bytes": 7}\n'
)


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlServer]:
    server = ControlServer(workers=2, servers=1, host="127.0.0.1")
    monkeypatch.setenv(wire.CONTROL_ADDRESS, server.address)
    monkeypatch.setenv(wire.CONTROL_SECRET, server.secret)
    # Clients in this process must not write their stacks, because other tests check that stderr is empty.
    monkeypatch.setenv(wire.ALIVE_SECS, "3600")
    monkeypatch.setattr(client_module, "LINGERS_SECS", 3600.0)
    yield server
    server.close()


def quiet(client: ControlClient) -> ControlClient:
    """A client that does not end the test process when the server closes."""
    client._leaving = True
    return client


def take(control: ControlServer, kind: str) -> Message:
    while True:
        message = control.next_message(60.0)
        assert message is not None, f"no {kind}"
        if message.kind == kind:
            return message


def test_hello_reports_and_done_arrive_in_order(control: ControlServer) -> None:
    client = quiet(ControlClient.connect(role="worker", index=1))
    client.report("progress", step=np.int64(3), losses=np.array([0.5, math.inf]), loss=math.nan)
    client.done(steps=3)
    hello, progress, done = (control.next_message(60.0) for _ in range(3))
    assert (hello.kind, hello.role, hello.index, hello.fields["pid"]) == ("hello", "worker", 1, os.getpid())
    assert hello.host == socket.gethostname()
    assert (progress.fields["step"], progress.fields["losses"]) == (3, [0.5, math.inf])
    assert math.isnan(progress.fields["loss"])
    assert (done.kind, done.fields) == ("done", {"steps": 3})


def test_the_protocols_own_words_are_no_reports(control: ControlServer) -> None:
    client = quiet(ControlClient.connect(role="worker", index=0))
    with pytest.raises(ValueError, match="reserved for the protocol"):
        client.report("done")


def test_addresses_are_exchanged_in_order_of_index(control: ControlServer) -> None:
    clients = [quiet(ControlClient.connect(role=r, index=i)) for r, i in (("worker", 1), ("server", 0), ("worker", 0))]
    clusters: list[dict] = []
    threads = [
        threading.Thread(target=lambda c=client, p=port: clusters.append(c.exchange_address(f"h:{p}")))
        for port, client in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert clusters == [{"worker": ["h:2", "h:0"], "server": ["h:1"]}] * 3


def test_children_wait_until_the_launch_is_proven(control: ControlServer) -> None:
    clients = [quiet(ControlClient.connect(role="worker", index=index)) for index in range(2)]
    waiting = [threading.Thread(target=client.wait_until_proven, daemon=True) for client in clients]
    for thread in waiting:
        thread.start()
    clients[1].prove({"rank": 1, "world_size": 2, "plan": "f00d"})
    said = take(control, "proof")
    assert (said.index, said.fields["world_size"], said.fields["plan"]) == (1, 2, "f00d")
    assert all(thread.is_alive() for thread in waiting)
    control.tell_proven()
    for thread in waiting:
        thread.join(60.0)
    assert not any(thread.is_alive() for thread in waiting)


@pytest.mark.parametrize("index", [0, 2])
def test_a_process_too_many_is_told_of_and_dropped(control: ControlServer, index: int) -> None:
    quiet(ControlClient.connect(role="worker", index=0))
    take(control, "hello")
    hello = {"kind": "hello", "role": "worker", "index": index, "host": "h", "secret": control.secret, "pid": 7}
    assert hung_up(control, json.dumps(hello).encode() + b"\n")
    surplus = take(control, "surplus")
    assert (surplus.index, surplus.host, surplus.fields["pid"]) == (index, "h", 7)
    assert control.next_message(0.05) is None


def test_stop_reaches_one_role_and_those_that_come_late(control: ControlServer) -> None:
    worker = quiet(ControlClient.connect(role="worker", index=0))
    server = quiet(ControlClient.connect(role="server", index=0))
    take(control, "hello"), take(control, "hello")
    control.stop("worker")
    assert worker.stop_requested.wait(60.0)
    late = quiet(ControlClient.connect(role="worker", index=1))
    assert late.stop_requested.wait(60.0)
    assert not server.stop_requested.is_set()


@pytest.mark.parametrize(
    "change",
    [
        *({"secret": "wrong"}, {"role": "chief"}, {"index": [1]}, {"kind": "progress"}, {"secret": None}),
        *({"index": math.inf}, {"index": math.nan}, {"host": None}, {"kind": ["hello"]}, {"secret": "\ud800"}),
    ],
)
def test_strangers_are_dropped(control: ControlServer, change: dict) -> None:
    hello = {"kind": "hello", "role": "worker", "index": 0, "host": "h", "secret": control.secret, **change}
    assert dropped(control, json.dumps(hello).encode() + b"\n")


@pytest.mark.parametrize(
    "line",
    [
        *(b"GET / HTTP/1.1\r\n", b"[]\n", b"\xff\n", b"{}\n", b'{"kind": 1e999}\n'),
        *(b"[" * 4000 + b"\n", b'{"kind":' * 500 + b"\n", b"x" * 5000 + b"\n", b"x" * 5000, b"9" * 4090 + b"\n"),
    ],
)
def test_other_protocols_are_dropped(control: ControlServer, line: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    assert dropped(control, line)
    assert capfd.readouterr().err == ""


def test_a_hello_that_comes_slowly_is_not_waited_for(control: ControlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "HELLO_TIMEOUT_SECS", 1.0)
    with socket.create_connection(address_of(control), timeout=0.1) as stranger:
        deadline = time.monotonic() + 30
        # Each byte comes long before the time-out; the kernel refuses to send when the other end is closed.
        while time.monotonic() < deadline:
            try:
                stranger.sendall(b"x")
                if stranger.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("the connection is still open")


def test_of_too_many_idle_connections_the_oldest_are_closed(control: ControlServer) -> None:
    most = 3 + control_module.MAX_STRANGERS
    idle = [socket.create_connection(address_of(control), timeout=5.0) for _ in range(most + 5)]
    try:
        assert [one.recv(1) for one in idle[:5]] == [b""] * 5
        # Who says hello is no stranger, and takes no other's place.
        quiet(ControlClient.connect(role="worker", index=0))
        assert take(control, "hello").index == 0
        idle[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            idle[-1].recv(1)
    finally:
        for one in idle:
            one.close()


def test_children_are_accepted_again_when_descriptors_are_free_again() -> None:
    code = (
        "import logging, resource, socket, sys, threading, time\n"
        "from parallax_runner.launch.control.server import ControlServer\n"
        "logging.basicConfig(stream=sys.stdout, format='%(message)s')\n"
        "logged = threading.Event()\n"
        "logging.root.handlers[0].addFilter(lambda record: not logged.set())\n"
        "server = ControlServer(workers=1, servers=0, host='127.0.0.1')\n"
        "host, port = server.address.split(':')\n"
        "first = socket.create_connection((host, int(port)))\n"
        "while not server._listener.strangers: time.sleep(0.01)  # until the first is accepted\n"
        "child = socket.socket()\n"
        "before = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (child.fileno() + 1, before[1]))\n"
        "child.connect((host, int(port)))\n"
        "logged.wait()\n"
        "time.sleep(1.0)  # long enough for several attempts\n"
        "first.close()\n"
        'hello = \'{"kind": "hello", "role": "worker", "index": 0, "host": "h", "secret": "%s"}\'\n'
        "child.sendall((hello % server.secret).encode() + b'\\n')\n"
        "print('heard', server.next_message(60.0).kind)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, before)  # threads that end open libgcc_s\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    told = done.stdout.splitlines()
    assert [line for line in told if "Too many open files" in line] == told[:1]
    assert told[-1] == "heard hello"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"nonsense\n", r"not a control message: b'nonsense\\n'"),
        (b"[" * 100_000 + b"\n", "not a control message: b'\\[\\[\\["),
        (b'{"kind": "last_step", "step": 1e999}\n', "'last_step' without a valid 'step'"),
        (b'{"kind": "address"}\n', "'address' without a valid 'address'"),
        (b'{"kind": "fail", "error": "x", "parts": "y"}\n', "'fail' without a valid 'parts'"),
        (b'{"kind": "alive", "doing": 3}\n', "'alive' without a valid 'doing'"),
        (b'{"kind": "alive", "doing": {"kind": "NAP", "step": null}}\n', "not an activity: .*NAP"),
        (b'{"kind": "alive", "doing": {"kind": "STEP", "step": null}}\n', "STEP with step None"),
        (ALIVE % b"[]", "'alive' without a valid 'awaited'"),
        (ALIVE % b'{"ranks": ["1"], "exchange": null}', "not ranks"),
        (ALIVE % b'{"ranks": [1], "exchange": 2}', "not the name of an exchange: 2"),
        (b"x" * 3000, "a line of more than 2000 bytes"),
    ],
)
def test_what_a_child_must_not_say_is_its_failure(
    control: ControlServer,
    line: bytes,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(control_module, "MAX_LINE_BYTES", 200_000 if len(line) > 5000 else 2000)
    hello = {"kind": "hello", "role": "worker", "index": 1, "host": "h", "secret": control.secret}
    with socket.create_connection(address_of(control), timeout=5.0) as child:
        child.sendall(json.dumps(hello).encode() + b"\n" + line)
        fail = take(control, "fail")
        assert (fail.role, fail.index) == ("worker", 1)
        assert re.search(told, fail.fields["error"]), fail.fields
        assert take(control, "closed").index == 1
    assert capfd.readouterr().err == ""


def address_of(control: ControlServer) -> tuple[str, int]:
    host, port = control.address.split(":")
    return host, int(port)


def dropped(control: ControlServer, line: bytes) -> bool:
    return hung_up(control, line) and control.next_message(0.05) is None


def hung_up(control: ControlServer, line: bytes) -> bool:
    with socket.create_connection(address_of(control), timeout=5.0) as stranger:
        stranger.sendall(line)
        try:
            return stranger.recv(1) == b""
        except ConnectionResetError:
            return True


def test_without_a_driver_the_child_says_how_it_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(wire.CONTROL_ADDRESS, raising=False)
    with pytest.raises(LaunchError, match=r"only the driver \(`python -m parallax_runner`\) can start a server"):
        ControlClient.connect(role="server", index=0)


def test_a_driver_that_is_gone_already(control: ControlServer) -> None:
    control.close()
    with pytest.raises(LaunchError, match="worker 0 cannot reach its driver"):
        ControlClient.connect(role="worker", index=0)


def test_a_child_ends_at_once_when_the_driver_is_gone(control: ControlServer) -> None:
    code = (
        "import time; from parallax_runner.launch.control.client import ControlClient; "
        "ControlClient.connect(role='worker', index=0); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    take(control, "hello")
    control.close()
    _, said = child.communicate(timeout=60)
    assert child.returncode == wire.CUT_OFF_STATUS
    assert said == "the driver is gone (control connection closed): this process exits\n"


def test_a_fork_does_not_keep_the_connection_open(control: ControlServer) -> None:
    code = (
        "import os, sys; from parallax_runner.launch.control.client import ControlClient; "
        "ControlClient.connect(role='worker', index=0); sys.stdin.read() if os.fork() == 0 else os._exit(0)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        take(control, "hello")
        child.wait(60)
        take(control, wire.CLOSED)  # although the fork is still running


def test_rank_from_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(wire.RANK_VARIABLE, raising=False)
    assert rank_from_environ() == 0
    monkeypatch.setenv(wire.RANK_VARIABLE, "OMPI_COMM_WORLD_RANK")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    assert rank_from_environ() == 3
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK")
    with pytest.raises(SystemExit, match="OMPI_COMM_WORLD_RANK='': expected this worker's rank"):
        rank_from_environ()


def test_signs_of_life_say_what_a_child_is_at(control: ControlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(wire.ALIVE_SECS, "0.05")
    client = quiet(ControlClient.connect(role="worker", index=0))
    client._leaving = False
    assert take(control, "alive").fields["doing"] == STARTING
    began = time.monotonic()
    client.doing, client.step = Activity(Kind.STEP, 41), 40
    while (fields := take(control, "alive").fields)["doing"] == STARTING:
        assert time.monotonic() < began + 60
    assert (fields["doing"], fields["step"], fields["awaited"]) == (Activity(Kind.STEP, 41), 40, Awaited())
    client.awaited = lambda: Awaited((2, 5), "sum")
    while not (fields := take(control, "alive").fields)["awaited"].ranks:
        assert time.monotonic() < began + 60
    assert fields["awaited"] == Awaited((2, 5), "sum")
    assert 0.0 <= fields["doing_secs"] <= time.monotonic() - began
    client._leaving = True


def test_a_child_answers_where_it_stands_whatever_its_main_thread_does(control: ControlServer) -> None:
    code = (
        "import time; from parallax_runner.launch.control.client import ControlClient; "
        "from parallax_runner.launch.control.activity import Activity, Kind; "
        "client = ControlClient.connect(role='worker', index=0); client.doing = Activity(Kind.SERVING); "
        "client.exchange_address('h:1')"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        take(control, "hello")
        deadline = time.monotonic() + 60
        while True:
            control.ask_where()
            fields = take(control, "stands").fields
            if fields["where"].call.startswith("threading.wait") or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        assert str(fields["where"]).startswith("threading.wait in launch/control/client.py:")
        assert str(fields["where"]).endswith(" exchange_address")
        assert fields["doing"] == Activity(Kind.SERVING)
    finally:
        child.kill()
        child.wait()


def test_the_last_words_say_whether_it_would_come_again(control: ControlServer) -> None:
    client = quiet(ControlClient.connect(role="worker", index=0))
    client.fail("the disk is full", "", recurs=True)
    assert take(control, "fail").fields["recurs"] is True


def test_the_last_words_have_the_parts_of_an_error(control: ControlServer) -> None:
    parts = ErrorParts("wrong", (Setting("data.cardinalities", "0", item=1),), remedy="omit it")
    quiet(ControlClient.connect(role="worker", index=0)).fail(str(parts), "", parts=parts)
    assert ErrorParts.from_json(take(control, "fail").fields["parts"]) == parts


def test_workers_leave_when_all_of_them_want_to(control: ControlServer) -> None:
    first, second = (quiet(ControlClient.connect(role="worker", index=index)) for index in (0, 1))
    left = threading.Event()
    threading.Thread(target=lambda: (first.leave(3), left.set()), daemon=True).start()
    message = take(control, "leave")
    assert (message.index, message.fields) == (0, {"step": 3})
    assert not left.wait(0.3)
    second.leave(4)
    assert left.wait(60.0)


def test_the_chief_goes_on_when_all_others_know_the_last_step(
    control: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    chief = quiet(ControlClient.connect(role="worker", index=0))
    may_listen, take_line = threading.Event(), ControlClient._take

    def take_late(self: ControlClient, kind: str, fields: dict) -> None:
        if self is not chief:
            assert may_listen.wait(60)
        take_line(self, kind, fields)

    monkeypatch.setattr(ControlClient, "_take", take_late)
    other = quiet(ControlClient.connect(role="worker", index=1))
    take(control, "hello"), take(control, "hello")
    announcing = threading.Thread(target=chief.announce_last_step, args=(7,))
    announcing.start()
    announcing.join(1.0)
    assert announcing.is_alive() and chief.last_step is None
    may_listen.set()
    announcing.join(60)
    assert (chief.last_step, other.last_step) == (7, 7)


def test_a_worker_that_goes_or_comes_meanwhile_does_not_hold_up_the_last_step(control: ControlServer) -> None:
    chief = quiet(ControlClient.connect(role="worker", index=0))
    take(control, "hello")
    chief.announce_last_step(3)
    late = quiet(ControlClient.connect(role="worker", index=1))
    deadline = time.monotonic() + 60
    while late.last_step is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert (chief.last_step, late.last_step) == (3, 3)


def test_the_state_of_an_epoch_reaches_the_worker_that_asked(control: ControlServer) -> None:
    clients = [quiet(ControlClient.connect(role="worker", index=index)) for index in range(2)]
    for _ in clients:
        take(control, "hello")
    wait = clients[1].ask_epoch(7)
    asked = take(control, wire.SAVING)
    assert (asked.index, asked.fields) == (1, {"step": 7})
    control.answer(wire.Answer(1, wire.STATE, {"state": {"number": 1}}))
    control.order({"until": 9})
    assert wait() == {"number": 1}
    assert [client.next_order() for client in clients] == [{"until": 9}] * 2


def test_orders_and_a_stop_reach_all_workers_in_the_same_order(control: ControlServer) -> None:
    clients = [quiet(ControlClient.connect(role="worker", index=index)) for index in range(2)]
    for _ in clients:
        take(control, "hello")
    control.order({"until": 5})
    control.stop("worker")
    control.order({"until": 9})
    for client in clients:
        assert [client.next_order() for _ in range(3)] == [{"until": 5}, None, {"until": 9}]
        assert client.stop_requested.is_set()
