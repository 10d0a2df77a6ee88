"""The flags of Paddle's pserver and trainer, and the environment variables `PADDLE_INIT_…` that can replace them."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from parallax_runner.errors import ConfigError, Setting
from parallax_runner.frontdoors.door import FrontDoor, Task
from parallax_runner.launch import bind_address

RENDEZVOUS = "PARALLAX_RENDEZVOUS"
VARIABLES = "PADDLE_INIT_"
HERE = ("127.0.0.1", "localhost")
# An alternative spelling in Paddle's own examples.
OTHER_NAMES = {"num_of_gradient_servers": "num_gradient_servers"}
TRUTHS = {"true": True, "1": True, "false": False, "0": False}
MEANINGS = {
    "port": "first port of a pserver",
    "ports_num": "number of ports, and thus servers, of each pserver",
    "ports_num_for_sparse": "accepted but ignored: the plan places sparse parameters",
    "num_gradient_servers": "number of trainers",
    "num_of_gradient_servers": "number of trainers",
    "trainer_id": "index of this trainer; trainer 0 starts the driver",
    "pservers": "hosts of all pservers, for trainers",
    "nics": "network interface that the other processes use to reach this one",
    "use_gpu": "False hides the GPUs from this process",
}


@dataclass(frozen=True)
class Settings:
    """The values of Paddle's flags, with Paddle's defaults."""

    port: int = 7164
    ports_num: int = 1
    ports_num_for_sparse: int = 0
    num_gradient_servers: int = 1
    trainer_id: int = 0
    pservers: tuple[str, ...] = ("127.0.0.1",)
    nics: str = ""
    use_gpu: bool = True
    is_local: bool = False

    def task(self, role: str, environ: Mapping[str, str]) -> Task:
        """Returns the place of a trainer or pserver in the cluster. Raises ConfigError if the settings are invalid."""
        if self.trainer_id >= self.num_gradient_servers:
            raise ConfigError(
                f"expected an integer, at least 0 and less than num_gradient_servers={self.num_gradient_servers}"
            ).about(Setting.of("trainer_id", self.trainer_id))
        return Task(
            role,
            self.trainer_id if role == "worker" else None,
            self._rendezvous(role, environ),
            workers=self.num_gradient_servers,
            servers=self.ports_num * len(self.pservers),
            count=1 if role == "worker" else self.ports_num,
            address=_address_of(self.nics) if self.nics else None,
            gpus=None if self.use_gpu else "",
        )

    def _rendezvous(self, role: str, environ: Mapping[str, str]) -> str:
        """Returns the URI of the rendezvous. If PARALLAX_RENDEZVOUS is not set, all processes must be on this machine
        and meet at the pserver's port, because Paddle's flags do not tell a pserver where the trainers are."""
        if RENDEZVOUS in environ:
            return environ[RENDEZVOUS]
        elsewhere = [host for host in self.pservers if host not in HERE]
        if role == "worker" and elsewhere:
            raise ConfigError(
                f"on several machines, {RENDEZVOUS} must give all trainers and "
                "pservers the address at which they meet: file:///shared/folder, redis://host:port/prefix, or tcp:// "
                "with the host and port of trainer 0"
            ).about(Setting.of("pservers", ",".join(self.pservers)))
        return f"tcp://{bind_address.LOOPBACK}:{self.port}"


class Paddle(FrontDoor):
    """The front door for Paddle. `parallax_runner.server` runs as a pserver, and `parallax_runner.worker` as a
    trainer."""

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Adds the flags, spelled as in Paddle."""
        group = parser.add_argument_group("options of Paddle, instead of --rendezvous")
        for name, meaning in MEANINGS.items():
            group.add_argument(f"--{name}", metavar=name.upper(), help=meaning)

    @classmethod
    def task(cls, role: str, asked: argparse.Namespace, environ: Mapping[str, str]) -> Task | None:
        """Returns the task that the flags describe, or None if no flag is given."""
        given = {name: getattr(asked, name) for name in MEANINGS}
        if all(value is None for value in given.values()):
            return None
        return settings_of(given, environ).task(role, environ)


def settings_of(given: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Returns the settings from arguments and environment variables. Arguments take precedence unless they are None.
    Raises ConfigError if a value is invalid."""
    names = [*Settings.__dataclass_fields__, *OTHER_NAMES]
    of_variables = {name: environ.get(VARIABLES + name.upper()) for name in names}
    found: dict[str, Any] = {}
    for source in (of_variables, given):
        for name, value in source.items():
            if value is not None:
                found[OTHER_NAMES.get(name, name)] = _read(name, value)
    return Settings(**found)


def _read(name: str, value: Any) -> Any:
    default = getattr(Settings, OTHER_NAMES.get(name, name))
    if isinstance(default, bool):
        truth = TRUTHS.get(str(value).lower())
        if truth is None:
            raise ConfigError("expected True or False").about(Setting.of(name, value))
        return truth
    if isinstance(default, int):
        return _integer(name, value)
    if name == "pservers":
        # Ports in the list are ignored, because all ports follow from `port`.
        hosts = value.split(",") if isinstance(value, str) else list(value)
        return tuple(str(host).strip().partition(":")[0] for host in hosts)
    return str(value)


def _integer(name: str, value: Any) -> int:
    least = 0 if name in ("trainer_id", "ports_num_for_sparse") else 1
    text = str(value)
    is_integer = text.isascii() and text.isdigit()
    if not is_integer or int(text) < least:
        raise ConfigError(f"expected an integer, at least {least}").about(Setting.of(name, value))
    return int(text)


def _address_of(interface: str) -> str:
    known = psutil.net_if_addrs()
    for address in known.get(interface, ()):
        if address.family == socket.AF_INET:
            return str(address.address)
    raise ConfigError(f"expected an interface with an IPv4 address; this machine has {', '.join(known)}").about(
        Setting.of("nics", interface)
    )
