"""Follows a job: shows the log of its driver and what its pods wait for, until the job has ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parallax_runner.errors import LaunchError
from parallax_runner.launch.launchers.kubernetes.api import Api
from parallax_runner.launch.launchers.kubernetes.job_status import (
    End,
    end_of,
    exit_status_of,
    failed_creation_of,
    has_log,
    problem_of,
    wanted_pods,
)
from parallax_runner.launch.launchers.kubernetes.pod_template import RUN_LABEL
from parallax_runner.launch.launchers.kubernetes.refusals import ServerLostError, is_forbidden

POLL_SECS = 1.0
# The stream of a log is opened again after this silence, because a lost connection may stay silent forever.
SILENT_SECS = 60.0
# The clocks of this machine and of a node may differ, so more of the log is requested than is missing.
CLOCKS_SECS = 30
# How long the API server may be away, for example while it is updated.
LOST_SECS = 300.0
_DIGITS_OF_SECOND = 9


def follow(api: Api, job: Mapping[str, Any], driver_label: tuple[str, str]) -> int:
    """Shows the job until it has ended, and returns its exit status: that of its driver, or 1 if the driver has none.

    `driver_label` is the label of the driver's pod and its value. Raises LaunchError if the API server refuses, or if
    it does not answer for LOST_SECS.
    """
    followed = _Followed(api, str(job["kind"]), str(job["metadata"]["name"]), driver_label)
    answered_secs, is_told = time.monotonic(), False
    while True:
        try:
            status = followed.show_news()
            answered_secs, is_told = time.monotonic(), False
        except ServerLostError as error:
            status = None
            if time.monotonic() > answered_secs + LOST_SECS:
                raise
            if not is_told:
                _tell(f"{error}; the job continues, and this command tries again for {LOST_SECS:g} s")
            is_told = True
        if status is not None:
            return status
        time.sleep(POLL_SECS)


@dataclass
class _Followed:
    """A job, and what was shown of it."""

    api: Api
    kind: str
    name: str
    driver_label: tuple[str, str]
    _logs: dict[str, _Log] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def show_news(self) -> int | None:
        """Shows what is new. Returns the exit status if the job has ended."""
        now = self.api.read(self.kind, self.name)
        end = End(False, "it was deleted") if now is None else end_of(now)
        pods = self.api.pods({RUN_LABEL: self.name})
        drivers = sorted(filter(self._is_driver, pods), key=_created)
        for pod in drivers:
            log = self._logs.setdefault(pod["metadata"]["uid"], _Log(self.api, pod["metadata"]["name"]))
            log.show(pod)
        if end is not None:
            return self._told_end(end, drivers, pods)
        remedy = f"; kubectl delete {self.kind.lower()} {self.name} ends the job"
        self._tell_problems(pods, remedy)
        if now is not None and len([pod for pod in pods if exit_status_of(pod) is None]) < wanted_pods(now):
            self._tell_failed_creations(now, remedy)
        return None

    def _is_driver(self, pod: Mapping[str, Any]) -> bool:
        label, value = self.driver_label
        return bool(pod["metadata"]["labels"].get(label) == value)

    def _told_end(self, end: End, drivers: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]]) -> int:
        if end.is_good:
            _tell(f"{self.kind} {self.name}: finished")
            return 0
        self._tell_problems(pods, "")
        _tell(f"{self.kind} {self.name}: failed: {end.reason}")
        statuses = [status for status in map(exit_status_of, drivers) if status]
        return statuses[-1] if statuses else 1

    def _tell_problems(self, pods: Sequence[Mapping[str, Any]], remedy: str) -> None:
        for problem in filter(None, map(problem_of, pods)):
            if problem not in self._told:
                self._told.add(problem)
                _tell(f"{problem}{remedy}")

    def _tell_failed_creations(self, job: Mapping[str, Any], remedy: str) -> None:
        """Tells once for each Job why its pods cannot be created, for example because of a quota. Each pod would have
        an event with a random name."""
        for event in self._failed_creations():
            found = failed_creation_of(event, job)
            if found is not None and found[0] not in self._told:
                self._told.add(found[0])
                _tell(f"{found[1]}{remedy}")

    def _failed_creations(self) -> list[dict[str, Any]]:
        try:
            return self.api.failed_creations()
        except LaunchError as error:
            if is_forbidden(error):  # these credentials need not see events
                return []
            raise


def _created(pod: Mapping[str, Any]) -> str:
    """Returns the time at which a pod was created. The server lists pods by their names, which end with random
    letters."""
    return str(pod["metadata"]["creationTimestamp"])


@dataclass
class _Log:
    """The log of one pod, and how much of it was shown."""

    api: Api
    pod: str
    is_complete: bool = False
    shown_until: str = ""
    read_secs: float | None = None
    _rest: bytes = field(default=b"")

    def show(self, pod: Mapping[str, Any]) -> None:
        """Shows new lines until the container has ended, or until the stream breaks."""
        if self.is_complete or not has_log(pod):
            return
        from urllib3.exceptions import HTTPError

        had_ended = exit_status_of(pod) is not None
        since_secs = None if self.read_secs is None else int(time.monotonic() - self.read_secs) + CLOCKS_SECS
        stream = self.api.open_log(self.pod, since_secs=since_secs, silent_secs=SILENT_SECS)
        self.is_complete = had_ended
        if stream is None:
            return
        try:
            for chunk in stream.stream():
                self.read_secs = time.monotonic()
                self._take(chunk)
        except HTTPError:
            self.is_complete = False
        finally:
            stream.close()
        self._take(b"\n" if self._rest else b"")
        self.read_secs = time.monotonic()

    def _take(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            moment, _, text = line.decode(errors="replace").partition(" ")
            moment = comparable(moment)
            if moment > self.shown_until:
                self.shown_until = moment
                print(text, file=sys.stderr, flush=True)


def comparable(moment: str) -> str:
    """Returns a time of RFC 3339 such that a later time is a greater string: with all digits of its second."""
    second, _, fraction = moment.removesuffix("Z").partition(".")
    return f"{second}.{fraction:0<{_DIGITS_OF_SECOND}}"


def _tell(note: str) -> None:
    print(f"parallax_runner: {note}", file=sys.stderr, flush=True)
