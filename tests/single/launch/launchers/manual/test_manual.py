"""Processes that stand by: what the driver and they say to each other, without a run."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.hosts.cluster import guarded
from parallax_runner.collectives.horovod.backend import Horovod
from parallax_runner.errors import ConfigError, LaunchError
from parallax_runner.launch.launchers.manual import claims as claiming
from parallax_runner.launch.launchers.manual import secret
from parallax_runner.launch.launchers.manual.channel import Channel
from parallax_runner.launch.launchers.manual.claims import Claims
from parallax_runner.launch.launchers.manual.rendezvous import split_address
from parallax_runner.launch.launchers.manual.stand_by import StandBy
from parallax_runner.launch.launchers.manual.standby_entry import Entry, signed, verified
from parallax_runner.launch.launchers.manual.stores.store import Store, open_store
from tests.free_port import pick_free_port
from tests.redis_server import needs_redis, redis_server

SECRET = b"0123456789abcdef"
OTHER_SECRET = b"another secret of 16"
StandsBy = Callable[..., StandBy]


def never() -> bool:
    return False


def entry(address: str, *, id: str = "a", role: str = "worker", index: int | None = None) -> Entry:
    return Entry(id=id, role=role, index=index, address=address, host="n1", pid=7)


@pytest.fixture(scope="session")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a server without a password."""
    with redis_server(tmp_path_factory.mktemp("redis")) as port:
        yield port


@pytest.fixture(params=["file", pytest.param("redis", marks=needs_redis)])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty rendezvous in each kind of store that several processes can open."""
    if request.param == "file":
        return f"file://{tmp_path}"
    monkeypatch.setenv(secret.VARIABLE, SECRET.decode())
    return f"redis://127.0.0.1:{request.getfixturevalue('redis_port')}/runs/{uuid.uuid4().hex}"


@pytest.fixture
def store(address: str) -> Store:
    return open_store(address, is_driver=True)


@pytest.fixture
def stands_by(address: str) -> StandsBy:
    """Makes processes that stand by, each a few threads of this one."""

    def make(id: str, role: str = "worker", index: int | None = None) -> StandBy:
        store = open_store(address, is_driver=False)
        listener = socket.create_server(("127.0.0.1", 0))
        own = entry(f"127.0.0.1:{listener.getsockname()[1]}", id=id, role=role, index=index)
        made = StandBy(store, listener, own)
        store.keep(made.entry)
        threading.Thread(target=made.listen, daemon=True).start()
        return made

    return make


def pair(own: bytes, other: bytes) -> tuple[Channel | Exception, Channel | Exception]:
    """Both ends of a connection, or why an end gave up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends: list[Channel | Exception] = []

        def accept() -> None:
            try:
                ends.append(Channel.accept(listener.accept()[0], other))
            except (OSError, ValueError) as error:
                ends.append(error)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            caller: Channel | Exception = Channel.connect(f"127.0.0.1:{listener.getsockname()[1]}", own)
        except (OSError, ValueError) as error:
            caller = error
        thread.join()
    return caller, ends[0]


def test_who_has_the_secret_is_heard() -> None:
    caller, callee = pair(SECRET, SECRET)
    assert isinstance(caller, Channel)
    assert isinstance(callee, Channel)
    caller.send("start", argv=["a"])
    assert callee.receive() == {"kind": "start", "argv": ["a"]}
    callee.send("started", pid=3)
    assert caller.receive() == {"kind": "started", "pid": 3}
    assert callee.is_open
    caller.close()
    assert not callee.is_open
    assert callee.receive() is None


def test_who_has_another_secret_is_not() -> None:
    assert [type(end) for end in pair(SECRET, OTHER_SECRET)] == [ValueError, ValueError]


def test_a_line_that_somebody_changes_or_repeats_on_the_way_is_not_believed() -> None:
    caller, callee = pair(SECRET, SECRET)
    assert isinstance(caller, Channel)
    assert isinstance(callee, Channel)
    caller.send("start", argv=["a"])
    line = callee._lines.next(1000)
    caller._connection.sendall(line.replace(b'"a', b'"b'))
    with pytest.raises(ValueError, match="did not sign"):
        callee.receive()
    caller._connection.sendall(line)
    assert callee.receive() == {"kind": "start", "argv": ["a"]}
    caller._connection.sendall(line)
    with pytest.raises(ValueError, match="did not sign"):
        callee.receive()


def test_an_entry_is_believed_if_its_signature_is_right() -> None:
    own = entry("127.0.0.1:1")
    assert verified(signed(own, SECRET), SECRET) == own
    assert verified(signed(own, OTHER_SECRET), SECRET) is None
    assert verified(signed(own, SECRET).replace(b"127.0.0.1", b"127.0.0.2"), SECRET) is None
    for nothing in (b"", b"{}", b"[]", b"\xff"):
        assert verified(nothing, SECRET) is None


def test_the_secret_of_a_folder_is_made_once_and_kept_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(secret.VARIABLE, raising=False)
    made = secret.of_folder(tmp_path / "meet")
    assert len(made) == 32
    assert secret.of_folder(tmp_path / "meet") == made
    assert [path.name for path in (tmp_path / "meet").iterdir()] == ["secret"]
    os.chmod(tmp_path / "meet" / "secret", 0o644)
    with pytest.raises(LaunchError, match="no other user can read"):
        secret.of_folder(tmp_path / "meet")
    monkeypatch.setenv(secret.VARIABLE, SECRET.decode())
    assert secret.of_folder(tmp_path / "meet") == SECRET


def test_a_folder_is_made_where_the_secret_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(secret.VARIABLE, SECRET.decode())
    store = open_store(f"file://{tmp_path}/not/there", is_driver=False)
    store.keep(entry("127.0.0.1:9"))
    assert [path.name for path in (tmp_path / "not" / "there").iterdir()] == ["worker-a.json"]


@pytest.mark.parametrize(("value", "wrong"), [(None, "is not set"), ("short", "has 5 characters")])
def test_without_a_secret_nothing_starts(value: str | None, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(secret.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(secret.VARIABLE, value)
    with pytest.raises(LaunchError, match=wrong):
        open_store(f"tcp://127.0.0.1:{pick_free_port()}", is_driver=True)


def test_all_are_claimed_whatever_order_they_come_in(address: str, stands_by: StandsBy) -> None:
    for made in (("c", "server"), ("b", "worker"), ("a", "worker", 0), ("d", "worker", 7)):
        stands_by(*made)
    found = Claims(address).gather("runs/1", {"worker": 2, "server": 1}, 5.0, never)
    assert {role: [claim.entry.id for claim in those] for role, those in found.items()} == {
        "worker": ["a", "b"],
        "server": ["c"],
    }


def test_those_that_are_missing_are_named(address: str, store: Store, stands_by: StandsBy) -> None:
    stands_by("a", "worker", 1)
    gone = entry(f"127.0.0.1:{pick_free_port()}", id="b", index=0)
    store.keep(gone)
    with pytest.raises(LaunchError) as raised:
        Claims(address).gather("runs/1", {"worker": 2, "server": 1}, 0.5, never)
    assert "missing after 0.5 s (cluster.rendezvous_timeout_secs): worker 0, server 0; registered: worker 1" in str(
        raised.value
    )
    assert f"worker 0 (pid 7 on n1, {gone.address}) is gone" in str(raised.value)


def test_one_that_ends_while_others_are_waited_for_needs_another_in_its_place(
    address: str, stands_by: StandsBy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process of its own, since the kernel ends its connections with it."""
    monkeypatch.setattr(claiming, "REPLACE_SECS", 1.0)
    gathering = Claims(address)
    program = "import sys; from parallax_runner.launch.launchers.manual.stand_by import stand_by as by; "
    program += "by('worker', sys.argv[1], 1, address=None, timeout_secs=60)"
    command = guarded([sys.executable, "-c", program, address], signal.SIGKILL)

    def kill_when_claimed() -> None:
        with subprocess.Popen(command) as process:
            while not gathering._claims:
                time.sleep(0.05)
            process.kill()
            while gathering._claims:  # a replacement comes only after the end has been noticed
                time.sleep(0.05)

    with ThreadPoolExecutor() as pool:
        pool.submit(kill_when_claimed)
        expected = r"worker 1 \(pid .*\) exited while .* within 1 s; missing: worker 0, worker 1"
        with pytest.raises(LaunchError, match=expected):
            gathering.gather("runs/1", {"worker": 2}, 60.0, never)
        monkeypatch.setattr(claiming, "REPLACE_SECS", 60.0)
        killed = pool.submit(kill_when_claimed)
        waiting = pool.submit(gathering.gather, "runs/1", {"worker": 2}, 60.0, never)
        killed.result(60.0)
        for id in "ab":
            stands_by(id)
        assert {one.entry.id for one in waiting.result(60.0)["worker"]} == {"a", "b"}
    told = capsys.readouterr().err
    assert [told.count(f"has exited; waiting {secs} s for a replacement") for secs in (1, 60)] == [1, 1]


def test_two_runs_at_one_rendezvous_are_told_apart(address: str, stands_by: StandsBy) -> None:
    stands_by("a")
    first, second = Claims(address), Claims(address)
    first.gather("runs/1", {"worker": 1}, 5.0, never)
    with pytest.raises(LaunchError, match="is serving another run, runs/1"):
        second.gather("runs/2", {"worker": 1}, 0.5, never)


def test_two_processes_with_one_rank_are_named(address: str, stands_by: StandsBy) -> None:
    for id in "ab":
        stands_by(id, "worker", 0)
    stands_by("c", "worker", 1)
    with pytest.raises(LaunchError, match=r"two processes have registered as worker 0: worker 0 .* and worker 0"):
        Claims(address).gather("runs/1", {"worker": 2}, 5.0, never)


def test_another_process_at_the_address_of_one_that_is_gone_is_not_taken_for_it(
    address: str, store: Store, stands_by: StandsBy
) -> None:
    there = stands_by("a")
    store.keep(dataclasses.replace(there.entry, id="0 gone"))
    store.withdraw(there.entry)
    with pytest.raises(LaunchError, match="another process is listening at its address"):
        Claims(address).gather("runs/1", {"worker": 1}, 0.5, never)


def test_what_is_not_signed_is_left_alone_and_named_once(
    address: str, store: Store, stands_by: StandsBy, caplog: pytest.LogCaptureFixture
) -> None:
    stands_by("a")
    stranger = open_store(address, is_driver=False)
    stranger.secret = OTHER_SECRET
    stranger.keep(entry("127.0.0.1:9", id="b"))
    for _ in range(2):
        assert [one.id for one in store.entries()] == ["a"]
    assert caplog.text.count("is not signed with this rendezvous's secret") == 1


def test_only_the_driver_that_has_claimed_a_process_starts_something_in_it(
    address: str, store: Store, stands_by: StandsBy
) -> None:
    there = stands_by("a")
    (claim,) = Claims(address).gather("runs/1", {"worker": 1}, 5.0, never)["worker"]
    other = Channel.connect(there.entry.address, store.secret)
    other.send("start", token="guessed", argv=["true"], env={}, cwd="/")
    assert other.receive() == {"kind": "refused", "reason": "another driver has claimed this process"}
    own = Channel.connect(there.entry.address, store.secret)
    own.send("start", token=claim.token, argv=["sh", "-c", "exit 3"], env={}, cwd="/")
    assert (own.receive() or {})["kind"] == "started"
    assert own.receive() == {"kind": "exited", "exit_status": 3}


def test_a_process_ends_when_its_driver_does(address: str, store: Store, stands_by: StandsBy) -> None:
    there = stands_by("a")
    (claim,) = Claims(address).gather("runs/1", {"worker": 1}, 5.0, never)["worker"]
    channel = Channel.connect(there.entry.address, store.secret)
    channel.send("start", token=claim.token, argv=["sleep", "60"], env={}, cwd="/")
    channel.receive()
    assert not there.over.is_set()
    claim.channel.close()
    assert there.over.wait(10.0)
    assert there._child is not None
    assert there._child.wait(10.0) < 0


def test_tcp_knows_those_who_are_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secret.VARIABLE, SECRET.decode())
    address = f"tcp://127.0.0.1:{pick_free_port()}"
    stander = open_store(address, is_driver=False)
    stander.keep(entry("127.0.0.1:9"))  # the driver is not there yet
    driver = open_store(address, is_driver=True)
    assert driver.entries() == []
    stander.keep(entry("127.0.0.1:9"))
    wait_until(lambda: [one.id for one in driver.entries()] == ["a"])
    stander.withdraw(entry("127.0.0.1:9"))
    wait_until(lambda: driver.entries() == [])
    with pytest.raises(LaunchError, match="cannot listen"):
        open_store(address, is_driver=True)


def test_a_host_that_nobody_knows_has_no_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secret.VARIABLE, SECRET.decode())
    assert open_store("tcp://nobody.invalid:1", is_driver=False).own_host() is None
    assert open_store("tcp://127.0.0.1:1", is_driver=False).own_host() == "127.0.0.1"


def wait_until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(500):
        if holds():
            return
        pause.wait(0.02)
    raise AssertionError("it never holds")


def test_places_of_ranks_among_hosts() -> None:
    places = Horovod().without_mpirun(["a", "b", "a"])
    assert [place["HOROVOD_LOCAL_RANK"] for place in places] == ["0", "0", "1"]
    assert [place["HOROVOD_LOCAL_SIZE"] for place in places] == ["2", "1", "2"]
    assert [place["HOROVOD_CROSS_RANK"] for place in places] == ["0", "1", "0"]
    assert [place["HOROVOD_CROSS_SIZE"] for place in places] == ["2", "2", "1"]
    assert [(place["HOROVOD_RANK"], place["HOROVOD_SIZE"]) for place in places] == [("0", "3"), ("1", "3"), ("2", "3")]


@pytest.mark.parametrize(
    "address",
    [
        *("meet", "file://host/meet", "tcp://host", "tcp://host:1/x", "ftp://h:1", "tcp://h:x"),
        *("redis://h:1", "redis://h:1/", "redis://h/runs", "redis:///runs"),
    ],
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(
        ConfigError, match=r"expected file:///shared/folder, tcp://host:port or redis://host:port/prefix"
    ):
        split_address(address)


@pytest.mark.parametrize("address", ["tcp://me:secret@host:1", "redis://:secret@host:1/runs"])
def test_a_password_in_an_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"every user of this host can read.*PARALLAX_REDIS_PASSWORD"):
        split_address(address)


def test_a_driver_opens_a_rendezvous_once(tmp_path: Path) -> None:
    assert claiming.claims_at(f"file://{tmp_path}") is claiming.claims_at(f"file://{tmp_path}")
