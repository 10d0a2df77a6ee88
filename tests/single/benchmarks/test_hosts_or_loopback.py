"""Where hosts cannot be made the benchmark says so, and measures on loopback."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as benchmark
from benchmarks.hosts import measure, network
from benchmarks.hosts.cluster import Cluster
from benchmarks.hosts.network import Host, Link
from benchmarks.hosts.rounds import Measurement
from benchmarks.runs import RunFailed
from tests.single.benchmarks.test_hosts_rounds import measured as measurement

ASKED = argparse.Namespace(
    hosts=2, mbit=100, latency_us=10, modes="mpi,horovod", repeats=1, steps=5, overrides=["model=simple"]
)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was said, and on which clusters something was measured."""
    seen: list[Any] = []
    monkeypatch.setattr(measure.rounds, "measure", lambda modes, cluster, **_: seen.append((modes, cluster)) or [])
    before = signal.getsignal(signal.SIGTERM)
    yield seen
    signal.signal(signal.SIGTERM, before)


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(network.INSIDE, raising=False)
    monkeypatch.setattr(network, "missing", lambda: "no network namespace can be made: Operation not permitted")
    said: list[str] = []
    measure.enter_network(said.append)
    assert len(said) == 1 and "Operation not permitted: measuring on loopback" in said[0]


def test_on_loopback(told: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(network.INSIDE, raising=False)
    found = measure.measure_hosts(ASKED, tmp_path / "runs", told.append)
    assert told == [(["mpi", "horovod"], Cluster(2))]
    assert found.link is None


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [(RunFailed("mpi: no words"), 1, "mpi: no words"), (KeyboardInterrupt(), 130, "interrupted")],
)
def test_what_was_measured_before_the_end_is_kept(
    error: BaseException, status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: Any, **__: Any) -> Iterator[Measurement]:
        yield measurement(0, "mpi", 1000)
        raise error

    monkeypatch.delenv(network.INSIDE, raising=False)
    monkeypatch.setattr(measure.rounds, "measure", measured)
    monkeypatch.setattr(benchmark, "enter_network", lambda _: None)
    before = signal.getsignal(signal.SIGTERM)
    assert benchmark.main(["--hosts", "2", "--modes", "mpi,horovod", "--out", str(tmp_path / "out")]) == status
    signal.signal(signal.SIGTERM, before)
    kept = json.loads((tmp_path / "out" / "hosts.json").read_text())
    assert [one["mode"] for one in kept["measurements"]] == ["mpi"] and kept["ended_early"] == said
    assert "ended early, after 1 measurements" in (tmp_path / "out" / "hosts.md").read_text()


def test_a_kernel_without_latency(told: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = (Host(1, 41), Host(2, 42))

    @contextmanager
    def shaped(count: int, link: Link) -> Iterator[Cluster]:
        told.append((count, link))
        yield Cluster(count, hosts)

    monkeypatch.setenv(network.INSIDE, "1")
    monkeypatch.setattr(network, "has_netem", lambda: False)
    monkeypatch.setattr(measure, "shaped", shaped)
    found = measure.measure_hosts(ASKED, tmp_path / "runs", told.append)
    said, made, measured = told
    assert "no netem: --latency-us is ignored" in said
    assert made == (2, Link(100)) and found.link == Link(100)
    assert measured[1] == Cluster(2, hosts)
