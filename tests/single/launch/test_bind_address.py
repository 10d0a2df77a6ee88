"""Which address a socket of a process gets that has the library preloaded: real processes, real sockets."""

import ast
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from parallax_runner.errors import LaunchError
from parallax_runner.launch import bind_address, preloaded
from parallax_runner.launch.job import Job
from parallax_runner.launch.launchers.local import Local

# Another address of the interface lo: it stands for a network's.
ELSEWHERE = "127.0.0.2"
BIND = """
import socket, sys
from parallax_runner.launch.bind_address import bind_towards

def bound(family, kind=socket.SOCK_STREAM, address="", only_six=0):
    with socket.socket(family, kind) as one:
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_six)
        one.bind((address, 0))
        return one.getsockname()[0]

def listens(family, only_six=0):
    with socket.socket(family) as one:
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_six)
        one.listen()
        return one.getsockname()[0]

def listens_again():
    with socket.socket() as one:
        one.bind(("127.0.0.3", 0))
        before = one.getsockname()
        one.listen()
        one.listen()
        return one.getsockname()[0] if one.getsockname() == before else "another port"

def listens_locally():
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("")
        one.listen()
        return "listens"

if sys.argv[1:]:
    bind_towards(sys.argv[1])
print({
    "four": bound(socket.AF_INET),
    "six": bound(socket.AF_INET6),
    "mapped": bound(socket.AF_INET6, address="::ffff:0.0.0.0"),
    "only six": bound(socket.AF_INET6, only_six=1),
    "four unbound": listens(socket.AF_INET),
    "six unbound": listens(socket.AF_INET6),
    "only six unbound": listens(socket.AF_INET6, only_six=1),
    "listens again": listens_again(),
    "Unix": listens_locally(),
    "of its own": bound(socket.AF_INET, address="127.0.0.3"),
    "UDP": bound(socket.AF_INET, socket.SOCK_DGRAM),
})
"""
NAME = """
import socket
from parallax_runner.launch.bind_address import host_named

before = socket.gethostname()
with host_named("127.0.0.2"):
    print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))
print(socket.gethostname() == before)
"""
UNCHANGED = {"of its own": "127.0.0.3", "UDP": "0.0.0.0", "listens again": "127.0.0.3", "Unix": "listens"}


def addresses(four: str, six: str, mapped: str, only_six: str) -> dict[str, str]:
    """What TCP sockets get, those included that listen without having been bound."""
    bound = {"four": four, "six": six, "mapped": mapped, "only six": only_six}
    return bound | {f"{kind} unbound": address for kind, address in bound.items() if kind != "mapped"} | UNCHANGED


ALL_INTERFACES = addresses("0.0.0.0", "::", "::ffff:0.0.0.0", "::")
LOOPBACK = addresses("127.0.0.1", "::ffff:127.0.0.1", "::ffff:127.0.0.1", "::1")


def bound(*towards: str, **environ: str) -> dict[str, str]:
    """The addresses that a process gets: it asks for `towards` itself, if anything."""
    env = {**os.environ, **preloaded.environment({}), **environ}
    done = subprocess.run([sys.executable, "-c", BIND, *towards], env=env, capture_output=True, text=True, check=True)
    return ast.literal_eval(done.stdout)


def test_nothing_changes_unless_it_is_asked_for() -> None:
    assert bound() == ALL_INTERFACES


def test_on_one_machine_sockets_get_the_loopback_address() -> None:
    assert bound(PARALLAX_BIND_TOWARDS="127.0.0.1") == LOOPBACK


def test_an_address_that_cannot_be_read_opens_nothing() -> None:
    assert bound(PARALLAX_BIND_TOWARDS="head.example") == LOOPBACK


def test_a_process_asks_for_another_address_later() -> None:
    found = bound(ELSEWHERE, PARALLAX_BIND_TOWARDS="127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((ELSEWHERE, 9))
        own = probe.getsockname()[0]
    assert found == addresses(own, f"::ffff:{own}", f"::ffff:{own}", "::1")


def test_without_a_way_there_no_socket_is_bound() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        bound(PARALLAX_BIND_TOWARDS="255.255.255.255")  # broadcast, which no socket is allowed by itself
    assert "PermissionError" in caught.value.stderr


def test_a_host_is_named_by_an_address_for_a_while() -> None:
    env = {**os.environ, **preloaded.environment({})}
    done = subprocess.run([sys.executable, "-c", NAME], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["127.0.0.2", "127.0.0.2", "True"]


def test_what_the_user_preloads_is_kept() -> None:
    assert preloaded.environment({"LD_PRELOAD": "/opt/a.so:/opt/b.so"}) == {
        "LD_PRELOAD": f"/opt/a.so:/opt/b.so:{preloaded.LIBRARY}"
    }


def test_a_process_without_the_library_starts_no_server() -> None:
    reason = r"libpreloaded.so is not loaded .* other machines could connect to the process"
    with pytest.raises(LaunchError, match=reason):
        bind_address.bind_towards("127.0.0.1")


def test_a_rank_without_the_library_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    bind_address.check_loaded()
    monkeypatch.setenv(bind_address.TOWARDS, "127.0.0.1")
    with pytest.raises(LaunchError, match="is not loaded"):
        bind_address.check_loaded()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another path of the library, at which there is none yet."""
    path = tmp_path / "a folder: mine" / "libpreloaded.so"
    path.parent.mkdir()
    monkeypatch.setattr(preloaded, "LIBRARY", path)
    preloaded.library_path.cache_clear()
    yield path
    preloaded.library_path.cache_clear()


def test_an_installation_with_blanks_in_its_path(elsewhere: Path) -> None:
    shutil.copy(Path(preloaded.__file__).with_name("libpreloaded.so"), elsewhere)
    assert bound(PARALLAX_BIND_TOWARDS="127.0.0.1") == LOOPBACK


def test_an_installation_without_the_library_starts_nothing(elsewhere: Path) -> None:
    job = Job(run_dir=Path("r"), workers=2, servers=1)
    with pytest.raises(LaunchError, match=r"libpreloaded.so is missing; .*scripts/setup"):
        Local().servers(job)
    with pytest.raises(LaunchError, match="is missing"):
        Local().workers(job, ExitStack())
