"""Reads `cluster.rendezvous`, the address at which processes that the user starts find the driver."""

from urllib.parse import SplitResult, urlsplit

from parallax_runner.errors import ConfigError

KEY = "cluster.rendezvous"
EXPECTED = "expected file:///shared/folder, tcp://host:port or redis://host:port/prefix"


def split_address(address: str) -> SplitResult:
    """Returns the parts of an address. Raises ConfigError for an invalid address. The message does not name the key."""
    try:
        split = urlsplit(address)
        port = split.port
    except ValueError as error:
        raise ConfigError(f"{address!r}: {error}; {EXPECTED}") from error
    if split.password is not None or split.username is not None:
        raise ConfigError(
            "the address contains a user name or password, which every user of this host can read; put the "
            f"password of a Redis server in the environment variable PARALLAX_REDIS_PASSWORD; {EXPECTED}"
        )
    is_complete = {
        "file": not split.netloc and len(split.path) > 1,
        "redis": bool(split.hostname) and port is not None and bool(split.path.strip("/")),
        "tcp": bool(split.hostname) and port is not None and not split.path.strip("/"),
    }
    if not is_complete.get(split.scheme):
        raise ConfigError(f"{address!r}: {EXPECTED}")
    return split
