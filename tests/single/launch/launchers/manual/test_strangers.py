"""A rendezvous to which strangers can write or connect: they run nothing here, and do not keep others from training."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from parallax_runner.errors import LaunchError
from parallax_runner.frontdoors.entry import start
from parallax_runner.launch.launchers.manual import claim_table, secret
from parallax_runner.launch.launchers.manual.channel import Channel
from parallax_runner.launch.launchers.manual.claims import Claims
from parallax_runner.launch.launchers.manual.stand_by import StandBy
from parallax_runner.launch.launchers.manual.standby_entry import Entry, _signature, signed, verified
from parallax_runner.launch.launchers.manual.stores import store as stores
from parallax_runner.launch.launchers.manual.stores.store import open_store
from tests.free_port import pick_free_port
from tests.redis_server import needs_redis, redis_server

# Whatever hangs here would hang for ever.
pytestmark = pytest.mark.timeout(120)
SECRET = b"0123456789abcdef"
NOBODY = 65534
FIELDS: dict[str, Any] = {
    "id": "a",
    "role": "worker",
    "index": 0,
    "address": "127.0.0.1:9",
    "host": "n1",
    "pid": 7,
}


@pytest.fixture
def from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secret.VARIABLE, SECRET.decode())


@pytest.fixture
def from_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(secret.VARIABLE, raising=False)


def stands_by(address: str, id: str = "a", index: int | None = None, kind: type[StandBy] = StandBy) -> StandBy:
    """A process that stands by: a few threads of this one."""
    listening = socket.create_server(("127.0.0.1", 0))
    own = Entry(**{**FIELDS, "id": id, "index": index, "address": f"127.0.0.1:{listening.getsockname()[1]}"})
    made = kind(open_store(address, is_driver=False), listening, own)
    made._store.keep(own)
    made.listen()
    return made


def gathered(claims: Claims, workers: int = 1, timeout_secs: float = 10.0) -> list[str]:
    found = claims.gather("runs/1", {"worker": workers}, timeout_secs, lambda: False)
    return [claim.entry.id for claim in found["worker"]]


# --- the secret of a folder


def test_a_secret_that_is_a_link_is_refused(from_folder: None, tmp_path: Path) -> None:
    """Whoever places it knows the text of this user's file, and could give this user's processes commands."""
    known = tmp_path / "known"
    known.write_bytes(b"a text that others know")
    known.chmod(0o600)
    meet = tmp_path / "meet"
    meet.mkdir(0o700)
    (meet / "secret").symlink_to(known)
    with pytest.raises(LaunchError, match=r"meet/secret: it is a symbolic link; expected .*RENDEZVOUS_SECRET in the"):
        secret.of_folder(meet)


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777])
def test_a_folder_that_others_can_write_to_has_no_secret(mode: int, from_folder: None, tmp_path: Path) -> None:
    meet = tmp_path / "meet"
    secret.of_folder(meet)
    assert meet.stat().st_mode & 0o777 == 0o700
    meet.chmod(mode)
    with pytest.raises(LaunchError, match="meet: other users can write to this folder; expected"):
        secret.of_folder(meet)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a folder of another user")
def test_a_folder_of_another_user_has_no_secret(
    from_folder: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    meet = tmp_path / "meet"
    meet.mkdir()
    (meet / "secret").symlink_to("/proc/self/personality")
    os.chown(meet, NOBODY, NOBODY)
    assert start("worker", [f"--rendezvous=file://{meet}", "--timeout-secs=1"]) == 1
    assert f"{meet}: it belongs to another user (uid {NOBODY}); expected" in capsys.readouterr().err
    assert not list(meet.glob("*.json"))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("fifo", "it is not a regular file"),
        ("short", "it has 5 characters instead of at least 16: remove it"),
        ("long", "it is larger than 4096 bytes"),
    ],
)
def test_what_is_no_secret(kind: str, wrong: str, from_folder: None, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    if kind == "fifo":
        os.mkfifo(path, 0o600)
    else:
        path.write_bytes(b"short" if kind == "short" else b"x" * 5000)
        path.chmod(0o600)
    with pytest.raises(LaunchError, match=wrong):
        secret.of_folder(tmp_path)


# --- entries


@pytest.mark.parametrize(
    "kind", ["fifo", "/dev/zero", "loop", "folder", "large", "nested", "surrogate", "long number", "name"]
)
def test_odd_files_in_the_folder_are_named_and_left_alone(
    kind: str, from_environment: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = tmp_path / "worker-x.json"
    if kind == "fifo":
        os.mkfifo(odd)
    elif kind in ("/dev/zero", "loop"):
        odd.symlink_to(odd if kind == "loop" else kind)
    elif kind == "folder":
        odd.mkdir()
    elif kind == "name":
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/worker-x\xff\x1b[31m.json")).write_text("{}")
    else:
        texts = {
            "large": "x" * (1 << 20),
            "nested": "[" * 10_000,
            "surrogate": '{"signature": "\\ud800"}',
            "long number": '{"signature": ' + "1" * 9000 + "}",
        }
        odd.write_text(texts[kind])
    begin = time.monotonic()
    stands_by(f"file://{tmp_path}")
    assert gathered(Claims(f"file://{tmp_path}")) == ["a"]
    assert time.monotonic() - begin < 10.0
    (told,) = [line for line in caplog.messages if "it is ignored" in line]
    assert f"{tmp_path}/worker-x" in told
    assert told.isprintable()


def test_ever_new_odd_files_do_not_fill_the_log(
    from_environment: None, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MOST_ENTRIES", 50)
    store = open_store(f"file://{tmp_path}", is_driver=True)
    for number in range(40):
        (tmp_path / f"{number}.json").write_text("{}")
    assert store.entries() == store.entries() == []
    told = [line for line in caplog.messages if "ignored" in line]  # a thread of an earlier test may still log
    assert len(told) == stores.MOST_NAMED + 1
    assert len(store._not_believed) == stores.MOST_NAMED + 1


def test_more_entries_than_any_run_has_are_refused(from_environment: None, tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}", is_driver=True)
    for number in range(stores.MOST_ENTRIES + 1):
        os.mknod(tmp_path / f"{number}.json")
    with pytest.raises(LaunchError, match=r"contains more than 10000 entries; expected .*choose a new folder"):
        store.entries()


@pytest.mark.parametrize(
    "change",
    [{"index": -1}, {"index": True}, {"index": 1.0}, {"pid": "7"}, {"address": None}, {"more": 1}, {"id": ["a"]}],
)
def test_what_is_no_entry_is_not_believed_even_if_it_is_signed(change: dict[str, Any]) -> None:
    assert verified(signed(Entry(**FIELDS), SECRET), SECRET) == Entry(**FIELDS)
    fields = {**FIELDS, **change}
    content = json.dumps({**fields, "signature": _signature(fields, SECRET)}).encode()
    assert verified(content, SECRET) is None


@pytest.mark.parametrize("signature", ['"\\ud800"', '"\\u00fc"', "null", "1e999", "[]", "1" * 9000])
def test_a_signature_may_be_any_json(signature: str) -> None:
    content = json.dumps(FIELDS)[:-1] + f', "signature": {signature}}}'
    assert verified(content.encode(), SECRET) is None


def test_a_rank_below_0_has_no_seat(capsys: pytest.CaptureFixture[str]) -> None:
    for role, option in (("worker", "--rank"), ("server", "--index")):
        assert start(role, ["--rendezvous=tcp://127.0.0.1:9", f"{option}=-1"]) == 2
        assert f"{option}=-1: expected a number from 0" in capsys.readouterr().err


def test_a_rank_below_0_takes_nobodys_seat(
    from_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"file://{tmp_path}"
    claims = Claims(address)
    wrong, right = stands_by(address, "wrong", -1), stands_by(address, "right", 0)
    monkeypatch.setattr(claims.store, "entries", lambda: [wrong.entry, right.entry])
    assert gathered(claims) == ["right"]


# --- connections


@pytest.mark.parametrize(
    "line",
    [
        *(b"[]", b"5", b"[1, 2]", b'["a"]', b'["\\u00fc", "{}"]', b'["\\ud800", "\\ud800"]', b"[" * 100_000),
        *(b'{"a": 1}', b"null", b"\xff"),
    ],
)
def test_a_line_that_is_changed_on_the_way_is_an_error_of_the_connection(line: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends: list[Channel] = []
        accepting = threading.Thread(target=lambda: ends.append(Channel.accept(listener.accept()[0], SECRET)))
        accepting.start()
        caller = Channel.connect(f"127.0.0.1:{listener.getsockname()[1]}", SECRET)
        accepting.join()
    caller._connection.sendall(line + b"\n")
    with pytest.raises(ValueError, match=r"received a line|decode|surrogates"):
        ends[0].receive(10.0)


def in_process_with_few_descriptors(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that may open 64 files, and writes how much CPU time it has used, once for each line that it reads."""
    program = (
        "import logging, resource, socket, sys, threading, time\n"
        "logging.basicConfig(stream=sys.stderr)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n" + code
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_silent_strangers_leave_the_driver_its_descriptors_and_its_processors(from_environment: None) -> None:
    port = pick_free_port()
    code = (
        "from parallax_runner.launch.launchers.manual.stores.store import open_store\n"
        "store = open_store(sys.argv[1], is_driver=True)\n"
        "print('open', flush=True)\n"
        "sys.stdin.readline()\n"
        "before = time.process_time()\n"
        "deadline = time.monotonic() + 60\n"
        "while not store.entries() and time.monotonic() < deadline: time.sleep(0.1)\n"
        "open('/dev/null').close()\n"
        "print(len(store.entries()), time.process_time() - before, threading.active_count(), flush=True)\n"
    )
    address = f"tcp://127.0.0.1:{port}"
    with in_process_with_few_descriptors(code, address) as driver:
        assert driver.stdin is not None and driver.stdout is not None
        assert driver.stdout.readline() == "open\n"
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        driver.stdin.write("go\n")
        driver.stdin.flush()
        stander = open_store(address, is_driver=False)
        stander.keep(Entry(**FIELDS))
        entries, cpu_secs, threads = driver.stdout.readline().split()
        for one in strangers:
            one.close()
        stander.withdraw(Entry(**FIELDS))
        driver.kill()
    assert entries == "1"
    assert float(cpu_secs) < 5.0
    assert int(threads) <= 64 // 4 + 4


def test_silent_strangers_do_not_make_a_process_deaf(from_environment: None, tmp_path: Path) -> None:
    """It may start few threads, as with `ulimit -u`."""
    code = (
        "start = threading.Thread.start\n"
        "def start_if_allowed(thread):\n"
        "    names = [one.name for one in threading.enumerate()]\n"
        "    if thread.name == 'driver-read' and names.count('driver-read') >= 8:\n"
        '        raise RuntimeError("can\'t start new thread")\n'
        "    start(thread)\n"
        "threading.Thread.start = start_if_allowed\n"
        "from parallax_runner.frontdoors.entry import start as main\n"
        "sys.exit(main('worker', [sys.argv[1], '--address=127.0.0.1', '--timeout-secs=100']))\n"
    )
    address = f"file://{tmp_path}"
    with in_process_with_few_descriptors(code, f"--rendezvous={address}") as process:
        claims = Claims(address)
        while not (there := claims.store.entries()):
            time.sleep(0.1)
        host, _, port = there[0].address.rpartition(":")
        strangers = [socket.create_connection((host, int(port))) for _ in range(24)]
        assert gathered(claims, timeout_secs=60.0) == [there[0].id]
        for one in strangers:
            one.close()
        process.kill()


class Crowded(StandBy):
    """Ends its first connection, as happens if many strangers come at once."""

    served = 0

    def _serve(self, connection: socket.socket, know: Callable[[], None]) -> None:
        self.served += 1
        if self.served > 1:
            super()._serve(connection, know)


def test_a_process_that_had_no_room_is_asked_again(from_environment: None, tmp_path: Path) -> None:
    there = stands_by(f"file://{tmp_path}", kind=Crowded)
    assert gathered(Claims(f"file://{tmp_path}")) == ["a"]
    assert isinstance(there, Crowded)
    assert there.served == 2


def test_a_process_that_connects_again_stays_when_its_first_connection_ends(from_environment: None) -> None:
    address = f"tcp://127.0.0.1:{pick_free_port()}"
    driver = open_store(address, is_driver=True)
    first, second = (open_store(address, is_driver=False) for _ in range(2))
    for store in (first, second):
        store.keep(Entry(**FIELDS))
    while len(driver._entries) < 2:  # type: ignore[attr-defined]
        time.sleep(0.02)
    assert driver.entries() == [Entry(**FIELDS)]
    first.withdraw(Entry(**FIELDS))
    while len(driver._entries) > 1:  # type: ignore[attr-defined]
        time.sleep(0.02)
    assert driver.entries() == [Entry(**FIELDS)]
    second.withdraw(Entry(**FIELDS))


# --- Redis


@needs_redis
def test_large_values_in_redis_are_not_read(
    from_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_server(tmp_path) as port:
        client = redis.Redis(port=port)
        client.set("runs:worker:x", b"x" * (8 << 20))
        client.lpush("runs:worker:y", "no string")
        address = f"redis://127.0.0.1:{port}/runs"
        store = open_store(address, is_driver=True)
        store.keep(Entry(**FIELDS))
        before = client.info("stats")["total_net_output_bytes"]
        assert [entry.id for entry in store.entries()] == ["a"]
        assert client.info("stats")["total_net_output_bytes"] - before < 1 << 20
        monkeypatch.setattr("parallax_runner.launch.launchers.manual.stores.redis.MOST_ENTRIES", 2)
        monkeypatch.setattr(stores, "MOST_ENTRIES", 2)
        with pytest.raises(LaunchError, match="contains more than 2 entries"):
            store.entries()


@needs_redis
def test_a_restart_of_redis_is_waited_for(
    from_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with redis_server(tmp_path) as port:
        address = f"redis://127.0.0.1:{port}/runs"
        claims = Claims(address)
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.extend(gathered(claims, timeout_secs=60.0)))
    waiting.start()
    time.sleep(1.0)
    with redis_server(tmp_path, port=port):
        stands_by(address)
        waiting.join()
    assert found == ["a"]
    assert "cannot be reached" in capsys.readouterr().err
    monkeypatch.setattr(claim_table, "STORE_SECS", 1.0)
    with pytest.raises(LaunchError, match="cannot be reached"):
        gathered(claims, workers=2, timeout_secs=60.0)


@needs_redis
def test_a_store_that_stays_away_is_named_with_those_that_are_missing(from_environment: None, tmp_path: Path) -> None:
    with redis_server(tmp_path) as port:
        claims = Claims(f"redis://127.0.0.1:{port}/runs")
    with pytest.raises(LaunchError, match=r"missing after 1 s .*worker 0.*the store does not answer"):
        gathered(claims, timeout_secs=1.0)
