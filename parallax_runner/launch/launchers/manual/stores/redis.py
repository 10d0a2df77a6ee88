"""A store whose entries are keys on a Redis server, named PREFIX:ROLE:ID. A key expires if its process does not renew
it."""

from __future__ import annotations

import itertools
import os
import re
from typing import Self
from urllib.parse import SplitResult, unquote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch.launchers.manual import own_address, secret
from parallax_runner.launch.launchers.manual.standby_entry import Entry, signed
from parallax_runner.launch.launchers.manual.stores.store import MOST_ENTRIES, MOST_ENTRY_BYTES, Store, StoreLostError

EXPIRES_SECS = 30
ANSWER_SECS = 5.0
RETRIES = 1
SCAN_COUNT = 1000


class Redis(Store):
    """The keys under one prefix in the server's database 0. Each run must use its own prefix."""

    def __init__(self, host: str, port: int, prefix: str) -> None:
        super().__init__(secret.from_environment())
        self._host, self._port, self._prefix = host, port, prefix
        self._password = os.environ.get(secret.REDIS_PASSWORD) or None
        self._server = redis.Redis(
            host=host,
            port=port,
            password=self._password,
            socket_timeout=ANSWER_SECS,
            socket_connect_timeout=ANSWER_SECS,
            retry=Retry(NoBackoff(), RETRIES),
        )

    @classmethod
    def open(cls, address: SplitResult, *, is_driver: bool) -> Self:
        """Connects to the server. Raises LaunchError if the server cannot be reached, rejects the password, or is not a
        Redis server."""
        store = cls(address.hostname or "", address.port or 0, unquote(address.path).strip("/"))
        try:
            store._server.ping()
        except (redis.RedisError, OSError) as error:
            raise store._failure(error) from error
        return store

    def own_host(self) -> str | None:
        """Returns the address from which the kernel would send to the server."""
        return own_address.towards(self._host, self._port)

    def keep(self, entry: Entry) -> None:
        """Writes the key again, which also resets its expiry time."""
        self._server.set(self._key(entry), signed(entry, self.secret), ex=EXPIRES_SECS)

    def withdraw(self, entry: Entry) -> None:
        """Deletes the key."""
        self._server.delete(self._key(entry))

    def entries(self) -> list[Entry]:
        """Returns the entries sorted by key, because the server does not record their order. Raises LaunchError if the
        server refuses, and StoreLostError if it cannot be reached."""
        found = []
        for key, content in self._contents().items():
            entry = self.believed(key.decode(errors="replace"), content)
            if entry is not None:
                found.append(entry)
        return found

    def _contents(self) -> dict[bytes, bytes]:
        """Returns the values of all keys, sorted by key. Whoever can write to the server can write any number of keys
        of any length, so both are bounded."""
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", self._prefix) + ":*"
        try:
            scanned = self._server.scan_iter(match=pattern, count=SCAN_COUNT)
            keys = sorted(set(itertools.islice(scanned, MOST_ENTRIES + 1)))
            self.check_number(len(keys), f"the Redis server at {self._host}:{self._port}, prefix {self._prefix},")
            asking = self._server.pipeline(transaction=False)
            for key in keys:
                asking.getrange(key, 0, MOST_ENTRY_BYTES)
            values = asking.execute(raise_on_error=False) if keys else []
            for value in values:
                if isinstance(value, redis.exceptions.NoPermissionError):
                    raise value
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
            raise self._failure(error) from error
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            raise StoreLostError(str(self._failure(error))) from error
        except redis.RedisError as error:
            raise self._failure(error) from error
        # A key that has just expired has no content, and one whose value is not a string has an error.
        return {key: value for key, value in zip(keys, values, strict=True) if isinstance(value, bytes) and value}

    def _key(self, entry: Entry) -> str:
        return f"{self._prefix}:{entry.role}:{entry.id}"

    def _failure(self, error: Exception) -> LaunchError:
        return LaunchError(self._wrong(error)).about(Setting("cluster.rendezvous", None))

    def _wrong(self, error: Exception) -> str:
        server = f"the Redis server at {self._host}:{self._port}"
        if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
            given = "rejects the password in" if self._password else "requires a password: set"
            return f"{server} {given} {secret.REDIS_PASSWORD} ({error})"
        if isinstance(error, redis.InvalidResponse):
            return f"the program at {self._host}:{self._port} is not a Redis server: {error}; check the host and port"
        if isinstance(error, redis.TimeoutError):
            return f"{server} does not answer within {ANSWER_SECS:g} s; check the host and port"
        if isinstance(error, redis.ConnectionError | OSError):
            return f"{server} cannot be reached: {error}; start redis-server there, or check the host and port"
        return f"{server} cannot be used: {error}"
