"""Reads `cluster.resource_info`: the hosts of a run, and the GPUs or CPU slots that the run uses on each host."""

import functools
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from parallax_runner.config.gpus import detect_gpus
from parallax_runner.errors import ConfigError
from parallax_runner.files.regular import read_regular

FORMAT = "expected «host: id,id», «host:» or «host»; an IPv6 address needs brackets, as in «[::1]: 0,1»"
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Host:
    """One line of `cluster.resource_info`.

    `slots` contains GPU ids if the host has GPUs, and otherwise CPU slot indices. The driver cannot detect the GPUs of
    another machine (`is_here` is False). The meaning of that machine's slots is therefore unknown until a worker runs
    there."""

    name: str
    slots: tuple[int, ...]
    is_here: bool = True

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{name}: {','.join(map(str, self.slots))}"


def read_hosts(resource_info: str | Sequence[str], *, gpus: Callable[[], tuple[int, ...]] = detect_gpus) -> list[Host]:
    """Returns the hosts in a file or in a list of lines. A string that contains a newline is read as lines.

    Raises ConfigError with a message that names the file and the line (lines of a list are numbered from 1).
    """
    if not isinstance(resource_info, str):
        return parse_hosts(resource_info, where="resource_info", gpus=gpus)
    if "\n" in resource_info:
        return parse_hosts(resource_info.splitlines(), where="resource_info", gpus=gpus)
    try:
        text = read_regular(Path(resource_info).expanduser())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "the file is not UTF-8 text"
        raise ConfigError(f"{resource_info}: cannot read the hosts of the run: {reason}") from error
    return parse_hosts(text.splitlines(), where=resource_info, gpus=gpus)


def parse_hosts(lines: Iterable[str], *, where: str, gpus: Callable[[], tuple[int, ...]] = detect_gpus) -> list[Host]:
    """Returns the hosts in the lines. `gpus` returns the ids of this machine's GPUs. Raises ConfigError with a message
    that names `where:line`.

    GPUs of other machines are not detected. If another machine's line contains no ids, the machine has one slot.
    """
    hosts: list[Host] = []
    seen: dict[str, tuple[str, int]] = {}
    gpus = functools.cache(gpus)  # this machine may have no line, and its GPUs are then not looked for
    for number, line in enumerate(lines, start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        place = f"{where}:{number}"
        name, ids = _split(content, place)
        here = is_this_machine(name)
        if not here:
            _refuse_ipv6(name, place)
        # All names of this machine refer to the same host.
        key = "" if here else name.lower()
        if key in seen:
            raise _repeated(name, place, *seen[key], where=where)
        seen[key] = (name, number)
        slots = _slots(ids, place, gpus() if here else ())
        hosts.append(Host(name=name, slots=slots, is_here=here))
    if not hosts:
        raise ConfigError(f"{where}: no host found; {FORMAT}")
    return hosts


def _refuse_ipv6(name: str, place: str) -> None:
    if _is_ipv6(name):
        raise ConfigError(
            f"{place}: host {name!r}: only this machine can have an IPv6 address here; give a name or IPv4 address"
        )


def _repeated(name: str, place: str, first: str, first_line: int, *, where: str) -> ConfigError:
    """Returns the error for a host that line `first_line` already names, as `first`."""
    other = "" if first == name else f" (as {first!r})"
    return ConfigError(
        f"{place}: host {name!r} already has a line, {where}:{first_line}{other}; put all its ids on one line"
    )


def listed_slots(lines: Sequence[str]) -> tuple[int, ...]:
    """Returns all ids in lines that have the format of `str(Host)`, in rank order. Does not detect GPUs."""
    return tuple(slot for line in lines for slot in _slots(_split(line, line)[1], line, ()))


def listed_hosts(lines: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the hosts in lines that have the format of `str(Host)`."""
    return tuple(_split(line, line)[0] for line in lines)


def is_this_machine(name: str) -> bool:
    """Returns whether a host's name or address belongs to this machine, without a DNS lookup."""
    own_names = {"localhost", socket.gethostname().lower(), socket.getfqdn().lower()}
    own_names |= {one.partition(".")[0] for one in own_names}
    if name.lower() in own_names:
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    if address.is_loopback:
        return True
    own = {each.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for each in addresses}
    return str(address) in own


def _split(content: str, place: str) -> tuple[str, str]:
    """Returns the host and its ids. An IPv6 address contains colons, so it needs brackets if ids follow. Without
    brackets, the whole text is read as an address."""
    if content.startswith("["):
        address, bracket, rest = content[1:].partition("]")
        if not bracket or not _is_ipv6(address) or (rest and not rest.lstrip().startswith(":")):
            raise ConfigError(f"{place}: {content!r} cannot be read: {FORMAT}")
        return address, rest.lstrip().removeprefix(":").strip()
    if _is_ipv6(content):
        return content, ""
    name, _, ids = content.partition(":")
    name = name.strip()
    if content.count(":") > 1 or not HOST_NAME.fullmatch(name):
        raise ConfigError(f"{place}: {content!r} cannot be read: {FORMAT}")
    return name, ids.strip()


def _is_ipv6(address: str) -> bool:
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True


def _slots(ids: str, place: str, gpus: tuple[int, ...]) -> tuple[int, ...]:
    if not ids:
        return gpus or (0,)
    slots = []
    for one in (part.strip() for part in ids.split(",")):
        if not re.fullmatch(r"[0-9]+", one):
            raise ConfigError(f"{place}: id {one!r} in «{ids}»: expected integers, at least 0, separated by commas")
        slot = int(one)
        if slot in slots:
            raise ConfigError(f"{place}: id {slot} occurs twice in «{ids}»: every worker needs its own device")
        if gpus and slot not in gpus:
            listed = ", ".join(map(str, gpus))
            raise ConfigError(f"{place}: id {slot}: this machine has only the GPUs {listed}")
        slots.append(slot)
    return tuple(slots)
