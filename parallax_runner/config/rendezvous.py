"""`cluster.rendezvous`: where processes that somebody else starts find the driver."""

from urllib.parse import SplitResult, urlsplit

from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import ConfigError

LAUNCHER = "manual"
KEY = "cluster.rendezvous"
EXPECTED = "expected file:///shared/folder, tcp://host:port or redis://host:port/prefix"


def split_address(address: str) -> SplitResult:
    """The parts of an address. Raises ConfigError, with a sentence that names no key."""
    try:
        split = urlsplit(address)
        port = split.port
    except ValueError as error:
        raise ConfigError(f"{address!r}: {error}; {EXPECTED}") from error
    if split.password is not None or split.username is not None:
        raise ConfigError(
            "the address has a user name or a password, which everybody on this host can read; the variable "
            f"PARALLAX_REDIS_PASSWORD has that of a Redis server; {EXPECTED}"
        )
    is_complete = {
        "file": not split.netloc and len(split.path) > 1,
        "redis": bool(split.hostname) and port is not None and bool(split.path.strip("/")),
        "tcp": bool(split.hostname) and port is not None and not split.path.strip("/"),
    }
    if not is_complete.get(split.scheme):
        raise ConfigError(f"{address!r}: {EXPECTED}")
    return split


def check_rendezvous(config: RunConfig, origins: Origins) -> None:
    """Refuses an address that cannot be read, or that nobody would use."""
    cluster = config.cluster
    if cluster.launcher != LAUNCHER:
        for name in ("rendezvous", "rendezvous_timeout_secs"):
            if f"cluster.{name}" in origins.given():
                needed = "it is for processes that somebody else starts: it goes with cluster=manual"
                raise refusal(f"cluster.{name}", origins, needed, value=getattr(cluster, name))
        return
    if cluster.rendezvous is None:
        raise refusal(KEY, origins, EXPECTED, value=None)
    try:
        split_address(cluster.rendezvous)
    except ConfigError as error:
        raise refusal(KEY, origins, str(error)) from error
    if cluster.resource_info is not None:
        needed = "under cluster=manual whoever starts the processes says where they are"
        raise refusal("cluster.resource_info", origins, needed, value=cluster.resource_info)
    if config.comm.name == "local":
        needed = "one process, which the driver starts itself"
        raise refusal("comm.name", origins, needed, value="local", hint="cluster=local")
