"""Samples of the machine, under names that MLflow's own page of system metrics knows."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from parallax_runner.track import system_metrics
from parallax_runner.track.system_metrics import SystemSampler, run_memory_bytes, sampling
from parallax_runner.track.tracker import NoTracker


class Noting:
    """As much of a tracker as is used here."""

    def __init__(self) -> None:
        self.samples: list[Mapping[str, float]] = []
        self.three = threading.Event()

    def log_sample(self, metrics: Mapping[str, float]) -> None:
        self.samples.append(metrics)
        if len(self.samples) >= 3:
            self.three.set()


def test_names_are_mlflows_own_and_numbers_make_sense(tmp_path: Path) -> None:
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    theirs = set()
    for monitor in (CPUMonitor(), DiskMonitor(), NetworkMonitor()):
        monitor.collect_metrics()
        theirs |= {f"system/{key}" for key in monitor.metrics}
    sample = SystemSampler(tmp_path).sample()
    assert set(sample) == theirs | {"system/run_memory_megabytes"}
    assert 0 <= sample["system/cpu_utilization_percentage"] <= 100
    assert 0 < sample["system/system_memory_usage_percentage"] <= 100
    assert sample["system/system_memory_usage_megabytes"] <= psutil.virtual_memory().total / 1e6
    assert sample["system/network_receive_megabytes"] >= 0


def test_the_run_s_memory_is_that_of_all_its_processes() -> None:
    before = run_memory_bytes()
    code = "block = b'x' * 200_000_000; print('there', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert run_memory_bytes() > before + 150_000_000
        child.kill()


def test_samples_are_taken_while_it_lasts_and_once_at_the_end(tmp_path: Path) -> None:
    tracker = Noting()
    with sampling(tracker, tmp_path, every_secs=60.0):
        assert tracker.samples == []
    assert len(tracker.samples) == 1
    with sampling(tracker, tmp_path, every_secs=0.01):
        assert tracker.three.wait(20.0)
    count = len(tracker.samples)
    time.sleep(0.1)
    assert len(tracker.samples) == count


def test_a_sample_that_fails_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = Noting()

    def fail(_: str) -> None:
        raise OSError("the disk is gone")

    with sampling(tracker, tmp_path):
        monkeypatch.setattr(system_metrics.psutil, "disk_usage", fail)
    assert tracker.samples == []


def test_where_nothing_is_recorded_nothing_is_sampled(tmp_path: Path) -> None:
    with sampling(NoTracker(), tmp_path):
        assert "system metrics" not in [thread.name for thread in threading.enumerate()]
