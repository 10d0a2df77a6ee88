"""Samples the state of this machine during a run. The samples become metrics under `system/…`, which trackers show as
system metrics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from parallax_runner.track.tracker import NoTracker, Tracker

log = logging.getLogger(__name__)

SAMPLE_EVERY_SECS = 10.0
MEGABYTE = 1e6


class SystemSampler:
    """Samples the machine's state. Values are percentages or megabytes (10^6 bytes). Network traffic is counted from
    the creation of the sampler."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = str(run_dir)
        self._network = psutil.net_io_counters()
        # The first call only sets the starting point of the measurement.
        psutil.cpu_percent()

    def sample(self) -> dict[str, float]:
        """Samples the machine and the memory of this process and its descendants. CPU load is the average since the
        previous sample."""
        memory, disk = psutil.virtual_memory(), psutil.disk_usage(self._run_dir)
        sample = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / MEGABYTE,
            "system_memory_usage_percentage": 100 * memory.used / memory.total,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / MEGABYTE,
            "disk_available_megabytes": disk.free / MEGABYTE,
            "run_memory_megabytes": run_memory_bytes() / MEGABYTE,
        }
        network = psutil.net_io_counters()
        if network is not None and self._network is not None:
            sample["network_receive_megabytes"] = (network.bytes_recv - self._network.bytes_recv) / MEGABYTE
            sample["network_transmit_megabytes"] = (network.bytes_sent - self._network.bytes_sent) / MEGABYTE
        return {f"system/{key}": round(value, 3) for key, value in sample.items()}


def run_memory_bytes() -> int:
    """Returns the resident memory of this process and its descendants. Shared pages are counted once per process."""
    own = psutil.Process()
    total = 0
    for process in [own, *own.children(recursive=True)]:
        try:
            total += process.memory_info().rss
        except psutil.Error:  # the process has ended
            continue
    return total


@contextmanager
def sampling(tracker: Tracker, run_dir: Path, every_secs: float = SAMPLE_EVERY_SECS) -> Iterator[None]:
    """Takes a sample every `every_secs` seconds and once more at the end. Does nothing if the tracker is a
    NoTracker."""
    if isinstance(tracker, NoTracker):
        yield
        return
    sampler, stopped = SystemSampler(run_dir), threading.Event()

    def take() -> None:
        try:
            tracker.log_sample(sampler.sample())
        except (psutil.Error, OSError) as error:
            log.info("cannot sample the system: %s", error)

    def work() -> None:
        while not stopped.wait(every_secs):
            take()

    thread = threading.Thread(target=work, name="system metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        take()
