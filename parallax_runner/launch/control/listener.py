"""Accepts connections from a network on which anyone can connect.

Until the other end has proven that it may connect, it is a stranger. Strangers cannot use up the descriptors or threads
of this process.
"""

import errno
import logging
import resource
import socket
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

# If this process runs out of descriptors or threads, it tries again after this time.
AGAIN_SECS = 0.2
# A process that may connect proves it at once. A stranger that has had this time makes room for others.
FAIR_SECS = 1.0
# A shortage is not logged again for this time.
WARN_AGAIN_SECS = 60.0

MOST_STRANGERS = 256

# Called with a connection, and with a function to call as soon as the other end is no stranger any more.
Serve = Callable[[socket.socket, Callable[[], None]], None]


class Listener:
    """Serves each connection in a thread of its own, and closes the connection when `serve` returns.

    There are at most `most_strangers` strangers: another one takes the place of the oldest. `serve` must limit how long
    a stranger can take.
    """

    def __init__(self, listening: socket.socket, serve: Serve, *, name: str, most_strangers: int) -> None:
        self._listening, self._serve, self._name = listening, serve, name
        self._most_strangers = most_strangers
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, float] = {}
        self._closed = threading.Event()
        self._warned_secs: float | None = None
        threading.Thread(target=self._accept, name=f"{name}-accept", daemon=True).start()

    @property
    def strangers(self) -> int:
        """The number of connections whose other end has not proven yet that it may connect."""
        with self._lock:
            return len(self._strangers)

    def close(self) -> None:
        """Stops listening, and ends the connections of all strangers."""
        self._closed.set()
        with self._lock:
            strangers = list(self._strangers)
        for one in (self._listening, *strangers):
            shut(one)
        self._listening.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError as error:
                # ECONNABORTED means that the connecting process has given up, which is harmless.
                if not self._closed.is_set() and error.errno != errno.ECONNABORTED:
                    self._make_room(error, spare=None)
                continue
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        with self._lock:
            oldest = next(iter(self._strangers)) if len(self._strangers) >= self._most_strangers else None
            self._strangers[connection] = time.monotonic()
        if oldest is not None:
            self._drop(oldest)
        while not self._closed.is_set():
            try:
                threading.Thread(target=self._run, args=(connection,), name=f"{self._name}-read", daemon=True).start()
                return
            except RuntimeError as error:  # no thread can be started
                self._make_room(error, spare=connection)
        connection.close()

    def _run(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._serve(connection, lambda: self._know(connection))
            finally:
                self._know(connection)

    def _know(self, connection: socket.socket) -> None:
        with self._lock:
            self._strangers.pop(connection, None)

    def _drop(self, stranger: socket.socket) -> None:
        """Ends a stranger's connection. Its thread then ends, and closes the connection."""
        self._know(stranger)
        shut(stranger)

    def _make_room(self, error: Exception, *, spare: socket.socket | None) -> None:
        """Waits after a shortage, and drops the oldest stranger if it has had its time."""
        now = time.monotonic()
        if self._warned_secs is None or now > self._warned_secs + WARN_AGAIN_SECS:
            log.warning("%s connections cannot be accepted at the moment: %s", self._name, error)
            self._warned_secs = now
        with self._lock:
            waiting = [one for one in self._strangers if one is not spare]
            is_late = bool(waiting) and now > self._strangers[waiting[0]] + FAIR_SECS
        if is_late:
            self._drop(waiting[0])
        self._closed.wait(AGAIN_SECS)


def affordable_strangers() -> int:
    """Returns a limit for listeners that do not know how many processes will connect: at most MOST_STRANGERS, and at
    most a quarter of the descriptors that this process may open."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return MOST_STRANGERS
    return max(1, min(MOST_STRANGERS, descriptors // 4))


def shut(one: socket.socket) -> None:
    """Ends a connection in both directions. A thread that reads from it sees its end."""
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        # The connection has already ended.
        return
