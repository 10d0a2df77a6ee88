"""The thread that sends a run's journal during the run. No failure of the store affects the run."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from parallax_runner.files.credentials import masked
from parallax_runner.track.mlflow.delivery import Busy, Delivery
from parallax_runner.track.mlflow.journal import Header
from parallax_runner.track.mlflow.store import OpenRun, OutOfReach, ParentUnknown, Refused, StoreError
from parallax_runner.track.mlflow.store_lock import sqlite_path

log = logging.getLogger(__name__)

SEND_EVERY_SECS = 2.0
MAX_PAUSE_SECS = 30.0
# How long a run waits at its end. The first limit is for a store that does not answer, and begins when a hanging call
# has timed out. The second limit is for a store that answers.
OUT_OF_REACH_SECS = 5.0
MAX_END_SECS = 60.0
TELL_SECS = 3.0  # how long to wait before a message is printed
# Errors from a SQLite file that another process is creating, and how many of these errors are ignored before a message
# is printed.
BEING_CREATED = re.compile(r"is locked|no such table|already exists|UNIQUE constraint")
UNTOLD_FAILURES = 2


class Sender:
    """Sends one journal until `close` is called. `header` is the header of the journal, with the full URI of the
    store."""

    def __init__(self, path: Path, open_run: OpenRun, header: Header) -> None:
        self._path, self._open_run, self._header = path, open_run, header
        self._finishing, self._abandoned, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._delivery: Delivery | None = None
        self.trouble: StoreError | None = None
        self._has_told = False
        self._is_file = sqlite_path(header.uri) is not None
        self.all_sent = False
        self._thread = threading.Thread(target=self._work, name="sender", daemon=True)
        self._thread.start()

    @property
    def run_id(self) -> str | None:
        """The id of the store's run, or None while the id is unknown."""
        opened = self._delivery.opened if self._delivery else None
        return opened.run_id if opened else None

    def close(self, hurry: Callable[[], bool] = lambda: False) -> bool:
        """Waits until everything has been sent or the time limit is reached. Call this method after the journal's last
        entry has been written.

        Returns whether everything has been sent. If `hurry()` returns true, the method waits for only a few seconds.
        Unsent entries stay in the journal.
        """
        self._finishing.set()
        started_secs, told = time.monotonic(), False
        try:
            while not self._ended.wait(0.05):
                patience_secs = MAX_END_SECS if self.trouble is None and not hurry() else OUT_OF_REACH_SECS
                waited_secs = time.monotonic() - started_secs
                if waited_secs > patience_secs:
                    break
                if not told and waited_secs > TELL_SECS:
                    told = True
                    print(
                        "parallax_runner: waiting for MLflow to accept the last metrics of this run, "
                        f"for at most {patience_secs:.0f} s",
                        file=sys.stderr,
                    )
        except KeyboardInterrupt:
            log.warning("Ctrl-C: no longer waiting for MLflow")
        self._abandoned.set()
        return self.all_sent

    def _work(self) -> None:
        try:
            while not self._abandoned.is_set():
                try:
                    with Delivery(self._path, self._open_run, self._header) as self._delivery:
                        self._deliver(self._delivery)
                    break
                except Busy:
                    self._abandoned.wait(0.2)
        except Refused as error:
            self.trouble = error
            self._tell(f"MLflow rejected this run: {error}")
        except Exception as error:  # the run continues in any case, and the journal contains all entries
            log.exception("the thread that sends the journal failed")
            self.trouble = StoreError(masked(f"{type(error).__name__}: {error}"))
            self._tell(f"sending this run to MLflow failed: {self.trouble}")
        finally:
            self._ended.set()

    def _deliver(self, delivery: Delivery) -> None:
        failures = 0
        while not self._abandoned.is_set():
            # Read the flag first, so that every entry that was appended before the flag was set is sent below.
            finishing = self._finishing.is_set()
            try:
                self._send_waiting(delivery)
                if finishing and not self._abandoned.is_set():
                    self.all_sent = True
                    return
                failures, pause_secs = 0, SEND_EVERY_SECS
            except ParentUnknown as error:
                # No call was made to the store. If the store is unreachable, the sweep's own run reports the problem.
                self.trouble, pause_secs = error, SEND_EVERY_SECS
                log.info("%s", error)
            except OutOfReach as error:
                failures += 1
                pause_secs = min(2.0**failures, MAX_PAUSE_SECS)
                self.trouble = error
                is_created = self._is_file and BEING_CREATED.search(error.reason) is not None
                if failures > UNTOLD_FAILURES or not is_created:
                    self._tell_once(has_run=delivery.opened is not None)
            if finishing:
                self._abandoned.wait(min(pause_secs, 0.5))
            else:
                self._finishing.wait(pause_secs)

    def _send_waiting(self, delivery: Delivery) -> None:
        """Sends all entries that the journal has now, unless sending is abandoned."""
        while not self._abandoned.is_set() and delivery.send_next():
            self._recover()

    def _recover(self) -> None:
        if self.trouble is not None:
            log.info("MLflow is reachable again")
        self.trouble, self._has_told = None, False

    def _tell_once(self, *, has_run: bool) -> None:
        if not self._has_told and has_run:
            log.warning("MLflow is unreachable: %s (training continues)", self.trouble)
        elif not self._has_told:
            self._tell(f"MLflow is unreachable: {self.trouble}")
        self._has_told = True

    def _tell(self, reason: str) -> None:
        """Logs a warning and also prints it on the terminal, since a wrong configuration may be the reason."""
        log.warning("%s (training continues)", reason)
        print(
            f"parallax_runner: {reason}. Training continues, and the metrics are kept in {self._path}", file=sys.stderr
        )
