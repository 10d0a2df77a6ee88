"""Files of hosts: what a line means, and which line is wrong."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from parallax_runner.config.gpus import detect_gpus
from parallax_runner.config.resource_info import Host, is_this_machine, listed_slots, parse_hosts, read_hosts
from parallax_runner.errors import ConfigError


def no_gpus() -> tuple[int, ...]:
    return ()


def four_gpus() -> tuple[int, ...]:
    return (0, 1, 2, 3)


LINES = {
    "localhost: 0,1": Host("localhost", (0, 1)),
    "localhost:0": Host("localhost", (0,)),
    "  localhost :  2 , 0  # two slots": Host("localhost", (2, 0)),
    "localhost": Host("localhost", (0,)),
    "localhost:": Host("localhost", (0,)),
    "127.0.0.1: 3": Host("127.0.0.1", (3,)),
    "127.5.0.1": Host("127.5.0.1", (0,)),
    "[::1]: 0,1": Host("::1", (0, 1)),
    "[::1]:": Host("::1", (0,)),
    "[::1]": Host("::1", (0,)),
    "::1": Host("::1", (0,)),
    socket.gethostname(): Host(socket.gethostname(), (0,)),
}


@pytest.mark.parametrize("line", LINES)
def test_one_line(line: str) -> None:
    assert parse_hosts(["", "# hosts", line, "  "], where="hosts.txt", gpus=no_gpus) == [LINES[line]]


@pytest.mark.parametrize("line", LINES)
def test_a_host_is_written_as_it_can_be_read(line: str) -> None:
    assert parse_hosts([str(LINES[line])], where="again", gpus=no_gpus) == [LINES[line]]


def test_ids_are_gpus_where_there_are_some() -> None:
    assert parse_hosts(["localhost"], where="x", gpus=four_gpus) == [Host("localhost", (0, 1, 2, 3))]
    assert parse_hosts(["localhost: 3,1"], where="x", gpus=four_gpus) == [Host("localhost", (3, 1))]
    with pytest.raises(ConfigError, match=r"x:1: id 4: this machine has only the GPUs 0, 1, 2, 3"):
        parse_hosts(["localhost: 0,4"], where="x", gpus=four_gpus)


WRONG = {
    "localhost: 0,x": "hosts.txt:3: id 'x' in «0,x»",
    "localhost: 0,,1": "hosts.txt:3: id '' in «0,,1»",
    "localhost: -1": "hosts.txt:3: id '-1'",
    "localhost: 1.5": "hosts.txt:3: id '1.5'",
    "localhost: 0 1": "hosts.txt:3: id '0 1'",
    "localhost: 0,1,0": "hosts.txt:3: id 0 occurs twice in «0,1,0»",
    ": 0,1": "hosts.txt:3: ': 0,1' cannot be read",
    "local host: 0": "hosts.txt:3: 'local host: 0' cannot be read",
    "localhost: 0: 1": "hosts.txt:3: 'localhost: 0: 1' cannot be read",
    "[::1: 0": "hosts.txt:3: '[::1: 0' cannot be read",
    "[::1] 0": "hosts.txt:3: '[::1] 0' cannot be read",
    "[localhost]: 0": "hosts.txt:3: '[localhost]: 0' cannot be read",
    "::1: 0": "an IPv6 address needs brackets",
    "[2001:db8::7]": "hosts.txt:3: host '2001:db8::7': only this machine can have an IPv6 address here",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_line_is_named(line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_hosts(["# hosts", "", line], where="hosts.txt", gpus=no_gpus)
    assert WRONG[line] in str(raised.value)


@pytest.mark.parametrize("again", ["localhost: 1", "127.0.0.1: 1", "[::1]: 1"])
def test_a_host_has_one_line(again: str) -> None:
    with pytest.raises(ConfigError, match=r"hosts.txt:2: host '.*' already has a line, hosts.txt:1"):
        parse_hosts(["localhost: 0", again], where="hosts.txt", gpus=no_gpus)


def test_other_machines(tmp_path: Path) -> None:
    lines = ["localhost: 0,1", "there.example: 4,7", "192.0.2.7"]
    here, there, address = parse_hosts(lines, where="x", gpus=four_gpus)
    assert here == Host("localhost", (0, 1))
    # Its GPUs are not looked for: any id is right, and without ids it has one.
    assert there == Host("there.example", (4, 7), is_here=False)
    assert address == Host("192.0.2.7", (0,), is_here=False)
    assert listed_slots([str(here), str(there), str(address), "[::1]: 5"]) == (0, 1, 4, 7, 0, 5)
    with pytest.raises(ConfigError, match=r"x:2: host 'THERE.example' already has a line, x:1 \(as 'there.example'\)"):
        parse_hosts(["there.example: 0", "THERE.example: 1"], where="x", gpus=no_gpus)


def test_a_file_and_a_list_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("# ours\n\nlocalhost: 0,1\n")
    expected = [Host("localhost", (0, 1))]
    assert read_hosts(str(path), gpus=no_gpus) == expected
    assert read_hosts(["localhost: 0,1"], gpus=no_gpus) == expected
    assert read_hosts("\nlocalhost: 0,1\n", gpus=no_gpus) == expected
    path.write_text("localhost: a\n")
    with pytest.raises(ConfigError, match=f"{path}:1: id 'a'"):
        read_hosts(str(path), gpus=no_gpus)
    path.write_text("# nobody\n")
    with pytest.raises(ConfigError, match=f"{path}: no host found"):
        read_hosts(str(path), gpus=no_gpus)
    with pytest.raises(ConfigError, match=r"nowhere.txt: .*No such file"):
        read_hosts(str(tmp_path / "nowhere.txt"), gpus=no_gpus)


def test_own_addresses() -> None:
    assert is_this_machine("LOCALHOST")
    assert is_this_machine(socket.gethostname())
    assert not is_this_machine("192.0.2.7")


def fake_smi(tmp_path: Path, script: str) -> tuple[str, ...]:
    path = tmp_path / "smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return (str(path),)


def test_detection(tmp_path: Path) -> None:
    none = tmp_path / "none"
    three = fake_smi(tmp_path, "printf '0\\n1\\n2\\n'")
    assert detect_gpus({}, command=three, driver_folder=none) == (0, 1, 2)
    assert detect_gpus({"CUDA_VISIBLE_DEVICES": "2,0"}, command=three, driver_folder=none) == (0, 1)
    assert detect_gpus({"CUDA_VISIBLE_DEVICES": "1,7,0"}, command=three, driver_folder=none) == (0,)
    assert detect_gpus({"CUDA_VISIBLE_DEVICES": ""}, command=three, driver_folder=none) == ()
    assert detect_gpus({"CUDA_VISIBLE_DEVICES": "-1"}, command=three, driver_folder=none) == ()
    failing = fake_smi(tmp_path, "echo no driver; exit 9")
    assert detect_gpus({}, command=failing, driver_folder=none) == ()
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    assert detect_gpus({}, command=failing, driver_folder=tmp_path / "gpus") == (0,)
    assert detect_gpus({}, command=(str(tmp_path / "missing"),), driver_folder=none) == ()
