"""Caffe2's `rendezvous` dictionary: the store handler, the shard of this process and the number of shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from parallax_runner.errors import ConfigError, Setting
from parallax_runner.frontdoors.door import Task
from parallax_runner.launch.launchers.manual.rendezvous import split_address

ENGINE = "GLOO"
NEEDED = ("kv_handler", "shard_id", "num_shards")


def file_store(path: str, prefix: str) -> str:
    """Returns the URI of a rendezvous in a folder that all hosts share. Each prefix is a separate rendezvous."""
    return "file://" + quote(str(Path(path).absolute() / prefix))


def redis_store(host: str, port: int, prefix: str) -> str:
    """Returns the URI of a rendezvous at a Redis server."""
    return f"redis://{host}:{port}/{quote(prefix)}"


def task_of(rendezvous: Mapping[str, Any], devices: Sequence[int] | None, *, on_cpu: bool) -> Task | None:
    """Returns the task for the shard of this process, or None if there is only one shard. Raises ConfigError if the
    arguments are invalid."""
    _check(rendezvous)
    shard_id, num_shards = rendezvous["shard_id"], rendezvous["num_shards"]
    if num_shards == 1:
        return None
    if devices is not None and len(devices) > 1:
        raise ConfigError("expected one device, because each shard is a process with one device.").about(
            Setting.of("devices", list(devices)),
            remedy="Start one process per device, and set num_shards to the number of processes",
        )
    address = str(rendezvous["kv_handler"])
    split_address(address)
    return Task("worker", shard_id, address, workers=num_shards, servers=0, gpus=_gpus(devices, on_cpu=on_cpu))


def _check(rendezvous: Mapping[str, Any]) -> None:
    missing = [name for name in NEEDED if name not in rendezvous]
    if missing:
        raise ConfigError(f"rendezvous has no {', '.join(missing)}; expected kv_handler, shard_id, num_shards, engine")
    if str(rendezvous.get("engine", ENGINE)).upper() != ENGINE:
        raise ConfigError(f"rendezvous: engine={rendezvous['engine']!r}: expected 'GLOO'")
    shard_id, num_shards = rendezvous["shard_id"], rendezvous["num_shards"]
    for name, number in (("shard_id", shard_id), ("num_shards", num_shards)):
        if not isinstance(number, int) or number < 0:
            raise ConfigError(f"rendezvous: {name}={number!r}: expected an integer, at least 0")
    if shard_id >= num_shards:
        raise ConfigError(f"rendezvous: shard_id={shard_id}: expected a number below num_shards={num_shards}")


def _gpus(devices: Sequence[int] | None, *, on_cpu: bool) -> str | None:
    """Returns the ids of the GPUs that the process may use, or None if `devices` does not limit them."""
    if on_cpu:
        return ""
    return None if devices is None else ",".join(map(str, devices))
