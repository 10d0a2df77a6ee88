"""A Redis server as the store, where it is another than in test_manual.py: entries that expire, and what goes wrong."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from parallax_runner.errors import LaunchError
from parallax_runner.frontdoors.entry import start
from parallax_runner.launch.launchers.manual import secret
from parallax_runner.launch.launchers.manual.stand_by import KEEP_SECS
from parallax_runner.launch.launchers.manual.standby_entry import Entry
from parallax_runner.launch.launchers.manual.stores import redis as redis_store
from parallax_runner.launch.launchers.manual.stores.store import open_store
from tests.free_port import pick_free_port
from tests.redis_server import needs_redis, redis_server

pytestmark = needs_redis
PASSWORD = "a long password"
OWN = Entry(id="a", role="worker", index=0, address="127.0.0.1:9", host="n1", pid=7)


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secret.VARIABLE, "0123456789abcdef")
    monkeypatch.delenv(secret.REDIS_PASSWORD, raising=False)


@pytest.fixture(scope="module")
def locked_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a server with a password."""
    with redis_server(tmp_path_factory.mktemp("redis"), password=PASSWORD) as port:
        yield port


def test_an_entry_expires_unless_it_is_kept(locked_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secret.REDIS_PASSWORD, PASSWORD)
    store = open_store(f"redis://127.0.0.1:{locked_port}/expires", is_driver=False)
    client = redis.Redis(port=locked_port, password=PASSWORD)
    store.keep(OWN)
    assert client.keys("*") == [b"expires:worker:a"]
    assert 2 * KEEP_SECS < client.ttl("expires:worker:a") <= redis_store.EXPIRES_SECS
    client.expire("expires:worker:a", 1)
    store.keep(OWN)
    assert client.ttl("expires:worker:a") > 2 * KEEP_SECS
    store.withdraw(OWN)
    assert client.keys("*") == []


def test_a_prefix_is_no_pattern(locked_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secret.REDIS_PASSWORD, PASSWORD)
    for prefix in ("run[1]*", "run1x"):
        open_store(f"redis://127.0.0.1:{locked_port}/{prefix}", is_driver=False).keep(OWN)
    redis.Redis(port=locked_port, password=PASSWORD).lpush("run[1]*:list", "no string")
    for prefix, count in (("run[1]*", 1), ("run", 0), ("run1x", 1)):
        assert len(open_store(f"redis://127.0.0.1:{locked_port}/{prefix}", is_driver=True).entries()) == count


@pytest.mark.parametrize(("password", "wrong"), [(None, "requires a password: set"), ("other", "rejects the password")])
def test_another_password(password: str | None, wrong: str, locked_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if password is not None:
        monkeypatch.setenv(secret.REDIS_PASSWORD, password)
    with pytest.raises(LaunchError, match=rf"server at 127.0.0.1:{locked_port} {wrong}.* {secret.REDIS_PASSWORD}"):
        open_store(f"redis://127.0.0.1:{locked_port}/runs", is_driver=True)


def test_a_server_that_is_not_there_is_said_in_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    port = pick_free_port()
    assert start("worker", [f"--rendezvous=redis://127.0.0.1:{port}/runs"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        f"parallax_runner.worker: cluster.rendezvous: the Redis server at 127.0.0.1:{port} cannot be reached: "
    )
    assert said.endswith("start redis-server there, or check the host and port\n")


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not a Redis server"),
        (b"", "cannot be reached"),
        (None, "does not answer within 0.5 s"),
    ],
)
def test_what_is_no_redis(answer: bytes | None, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if answer is None:
        monkeypatch.setattr(redis_store, "ANSWER_SECS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if answer is not None:
            threading.Thread(target=_answer, args=(listener, answer), daemon=True).start()
        port = listener.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"127.0.0.1:{port} .*{wrong}.*check the host and port"):
            open_store(f"redis://127.0.0.1:{port}/runs", is_driver=True)


def _answer(listener: socket.socket, answer: bytes) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.recv(1000)
        connection.sendall(answer)
        connection.close()


def test_a_server_that_goes_away_is_said_to_the_driver(tmp_path: Path) -> None:
    with redis_server(tmp_path) as port:
        store = open_store(f"redis://127.0.0.1:{port}/runs", is_driver=True)
        assert store.entries() == []
    with pytest.raises(LaunchError, match="cannot be reached"):
        store.entries()
    with redis_server(tmp_path, port=port):
        assert store.entries() == []
