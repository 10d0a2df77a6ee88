"""What makes the hosts of a benchmark: every command, what stands for ssh, and the interfaces' counters."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.hosts import agent, network
from benchmarks.hosts.counters import Traffic, parse, read
from benchmarks.hosts.network import Host, Link, bridge_commands, host_commands

TBF = ["tbf", "rate", "200mbit", "burst", "262144", "latency", "100ms"]
INSIDE = ["nsenter", "--target", "4711", "--net", "--uts"]


def test_the_bridge_has_the_drivers_address() -> None:
    assert bridge_commands() == [
        ["ip", "link", "set", "lo", "up"],
        ["ip", "link", "add", "br0", "type", "bridge"],
        ["ip", "address", "add", "10.9.0.1/24", "dev", "br0"],
        ["ip", "link", "set", "br0", "up"],
    ]


def test_a_host_is_held_back_at_both_ends_of_its_link() -> None:
    assert host_commands(Host(3, 4711), Link(200)) == [
        ["ip", "link", "add", "v3", "type", "veth", "peer", "name", "e0", "netns", "4711"],
        ["ip", "link", "set", "v3", "master", "br0", "up"],
        ["tc", "qdisc", "add", "dev", "v3", "root", *TBF],
        [*INSIDE, "ip", "link", "set", "lo", "up"],
        [*INSIDE, "ip", "address", "add", "10.9.0.13/24", "dev", "e0"],
        [*INSIDE, "ip", "link", "set", "e0", "up"],
        [*INSIDE, "tc", "qdisc", "add", "dev", "e0", "root", "handle", "1:", *TBF],
    ]


def test_latency_is_added_where_a_host_sends() -> None:
    *others, last = host_commands(Host(3, 4711), Link(200, latency_us=50))
    assert others == host_commands(Host(3, 4711), Link(200))
    delay = ["netem", "delay", "50us", "limit", "100000"]
    assert last == [*INSIDE, "tc", "qdisc", "add", "dev", "e0", "parent", "1:", *delay]


def test_a_faster_link_may_send_more_at_once() -> None:
    assert Link(1000).burst_bytes == 1_250_000
    assert Link(10).burst_bytes == 256 * 1024


def test_without_root_the_network_is_in_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network.os, "geteuid", lambda: 1000)
    assert network.unshare_command() == ["unshare", "--user", "--map-root-user", "--net"]
    monkeypatch.setattr(network.os, "geteuid", lambda: 0)
    assert network.unshare_command() == ["unshare", "--net"]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network.shutil, "which", lambda tool: None if tool == "tc" else f"/bin/{tool}")
    assert network.missing() == "tc cannot be found (packages iproute2 and util-linux)"
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setattr(network.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(network, "unshare_command", lambda: ["sh", "-c", "echo Operation not permitted >&2; exit 1"])
    assert network.missing() == "no network namespace can be made: Operation not permitted"


WHERE = "10.9.0.11=41,10.9.0.12=42"


def test_the_agent_drops_the_options_of_ssh() -> None:
    words = [
        "-x",
        "-p",
        "2222",
        "-oBatchMode=yes",
        "-o",
        "ConnectTimeout=5",
        "10.9.0.12",
        "PATH=/a:$PATH",
        ";",
        "prted",
    ]
    host, command = agent.split(words)
    assert (host, command) == ("10.9.0.12", ["PATH=/a:$PATH", ";", "prted"])
    on_host = ["nsenter", "--target", "42", "--net", "--uts", "sh", "-c", "PATH=/a:$PATH ; prted"]
    assert agent.command_on(WHERE, host, command) == on_host
    with pytest.raises(ValueError, match="no host given"):
        agent.split(["-p", "22"])


def test_the_agent_says_that_there_is_no_such_host() -> None:
    argv = [sys.executable, "-I", "-S", agent.__file__, WHERE, "10.9.0.99", "true"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (255, "agent: no such host: '10.9.0.99'\n")


def test_the_agent_is_what_runs_are_told_to_use() -> None:
    words = network.agent_command([Host(1, 41), Host(2, 42)]).split()
    assert Path(words[3]) == Path(agent.__file__)
    assert words[4:] == [WHERE]


COUNTERS = """\
Inter-|   Receive                                          |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0 100 1 0 0 0 0 0 0
    e0: 5000000    4000    0    0    0     0          0         0 70000000 60000 0 0 0 0 0 0
"""


def test_counters() -> None:
    assert parse(COUNTERS, "e0") == Traffic(received_bytes=5_000_000, sent_bytes=70_000_000)
    with pytest.raises(ValueError, match="no interface e1"):
        parse(COUNTERS, "e1")
    before = read(os.getpid(), "lo").sent_bytes
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()[:2]) as sender:
        sender.sendall(bytes(10_000))
    assert read(os.getpid(), "lo").sent_bytes >= before + 10_000
