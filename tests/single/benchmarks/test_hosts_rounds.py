"""Rounds over the same links: bytes of a step, speeds, ratios, and how runs and peers are started."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.__main__ import parse
from benchmarks.hosts import peers
from benchmarks.hosts.cluster import Cluster, free_ports
from benchmarks.hosts.measure import Measured
from benchmarks.hosts.network import Host, Link
from benchmarks.hosts.occupancy import Occupancy
from benchmarks.hosts.results import ratios, rows_of_hosts
from benchmarks.hosts.rounds import OURS, Measurement, Sample, from_step, sent_in_a_step, split_steps
from benchmarks.modes import chosen
from benchmarks.runs import Predicted

HOSTS = Cluster(2, (Host(1, 41), Host(2, 42)))
ON_LOOPBACK = Cluster(2)


def test_arguments() -> None:
    asked = parse(["--hosts", "8", "experiment=zipf_lm"])
    assert (asked.kind, asked.hosts, asked.mbit, asked.latency_us, asked.repeats) == ("hosts", 8, 200, 0, 3)
    assert "tensorflow_ps" in asked.modes.split(",")
    assert parse(["--hosts=2", "--mbit", "1000", "--latency-us", "10"]).mbit == 1000
    for wrong in (["--hosts", "0"], ["--mbit", "100"], ["--hosts", "201"], ["--hosts", "2", "--modes", "mpi,horvod"]):
        with pytest.raises(SystemExit):
            parse(wrong)


def test_a_mode_may_bring_its_steps() -> None:
    assert split_steps("horovod_dense:6", 40) == ("horovod_dense", 6)
    assert split_steps("mpi", 40) == ("mpi", 40)
    for wrong in ("horvod", "mpi:x", "mpi:0", "mpi:", "local"):
        with pytest.raises(ValueError, match=wrong):
            split_steps(wrong, 40)


def test_a_mode_may_name_its_backend() -> None:
    assert chosen("sharded_native") == ["comm=sharded", "comm.backend=native"]
    assert chosen("sharded_off") == ["comm=sharded", "comm.lookahead=off"]
    assert all(chosen(mode)[0] == f"comm={mode.partition('_')[0]}" for mode in OURS)


def test_bytes_of_a_step_leave_out_what_came_before() -> None:
    samples = [
        Sample(1, 0.0, (9_000_000, 9_000_000)),
        Sample(5, 1.0, (10_000_000, 20_000_000)),
        Sample(10, 2.0, (15_000_000, 25_000_000)),
        Sample(15, 3.0, (30_000_000, 40_000_000)),
    ]
    assert sent_in_a_step(from_step(samples, 5)) == (2_000_000, 2_000_000)
    assert sent_in_a_step(from_step(samples[:2], 5)) == ()
    assert sent_in_a_step([Sample(5, 0.0, ()), Sample(10, 1.0, ())]) == ()


def test_our_runs_are_told_of_the_hosts() -> None:
    hosts, shell, mpi = HOSTS.overrides()
    assert hosts == "cluster.resource_info=['10.9.0.11: 0','10.9.0.12: 0']"
    assert shell.startswith(f"cluster.remote_shell='{sys.executable} ") and shell.endswith("10.9.0.11=41,10.9.0.12=42'")
    assert mpi == (
        "comm.mpi.mpirun_options='--mca threads_pthreads_yield_strategy nanosleep "
        "--mca threads_pthreads_nanosleep_time 500000'"
    )
    assert ON_LOOPBACK.overrides() == ["cluster.workers=2", "cluster.servers=2"]


def test_peers_are_started_as_our_ranks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/here")
    argv, env = ON_LOOPBACK.mpirun(["python", "peer.py"])
    assert argv[1:6] == ["-np", "2", "--mca", "mpi_yield_when_idle", "1"] and argv[-2:] == ["python", "peer.py"]
    assert "--host" not in argv and "nanosleep" not in argv and argv[argv.index("PYTHONPATH") - 1] == "-x"
    assert env["OMP_NUM_THREADS"] == "1"
    assert "nanosleep" in HOSTS.mpirun(["python"])[0]
    argv = HOSTS.on(1, ["python", "a b"])
    assert argv[-2] == "10.9.0.12"
    assert argv[-1].startswith("exec env OMP_NUM_THREADS=1 ") and argv[-1].endswith("python 'a b'")
    assert ON_LOOPBACK.on(1, ["python"])[0] == "env"


def test_peers_of_tensorflow_have_their_jobs_on_each_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(peers, "_start", lambda argv, log, stack: started.append((argv[-2], log.name)))

    def first(mode: str) -> list[str]:
        started.clear()
        with ExitStack() as stack:
            [(argv, _)] = peers.PEERS[mode].commands(HOSTS, ["--steps", "5"], tmp_path, stack)
        return argv[-1].split()

    told = first("keras_parameter_server")
    assert told[told.index("--job") + 1] == "chief" and told[-2:] == ["--steps", "5"]
    jobs = [("10.9.0.11", "ps_0.log"), ("10.9.0.12", "ps_1.log")]
    assert started == [*jobs, ("10.9.0.11", "worker_0.log"), ("10.9.0.12", "worker_1.log")]
    told = first("keras_multi_worker")
    assert told[told.index("--job") + 1 : told.index("--workers")] == ["worker", "--index", "0"]
    assert started == [("10.9.0.12", "worker_1.log")]


def test_plain_fits_know_nothing_of_each_other(tmp_path: Path) -> None:
    with ExitStack() as stack:
        commands = peers.PEERS["keras_fit"].commands(HOSTS, ["--steps", "5"], tmp_path, stack)
    assert len(commands) == HOSTS.count
    assert all(argv[0] == "env" and argv[-2:] == ["--steps", "5"] for argv, _ in commands)


def test_where_the_peers_listen() -> None:
    assert HOSTS.addresses() == (["10.9.0.11:2223", "10.9.0.12:2223"], ["10.9.0.11:2222", "10.9.0.12:2222"])
    workers, servers = ON_LOOPBACK.addresses()
    assert len({*workers, *servers}) == 4
    assert len(set(free_ports(20))) == 20


def measured(number: int, mode: str, rate: float, sent_bytes: float | None = 5e6) -> Measurement:
    return Measurement(
        round=number,
        mode=mode,
        rate=rate,
        unit="words/s",
        step_ms=1e6 / rate,
        sent_bytes=sent_bytes,
        of_each_host=(),
        occupancy=Occupancy(full_ms=300, busy_ms=800, idle_ms=200, neither_ms=50) if mode == "mpi" else None,
        counted_bytes=4e6 if mode == "mpi" else None,
        predicted=Predicted(6_000_000, measured=number > 0) if mode == "mpi" else None,
        loss_last=1.0,
        load_average=0.0,
        busy_share=0.0,
    )


ROUNDS = [
    measured(0, "mpi", 1000),
    measured(0, "horovod", 500),
    measured(1, "mpi", 900),
    measured(1, "horovod", 300),
    measured(2, "mpi", 1000),
    measured(2, "horovod", 400),
]


def test_ratios_are_of_the_same_round() -> None:
    ratio = ratios(ROUNDS, "mpi", "horovod")
    assert ratio is not None
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((2.0, 2.5, 3.0))
    ended_early = ratios(ROUNDS[:3], "mpi", "horovod")
    assert ended_early is not None and ended_early.high == ended_early.low == 2.0
    assert ratios(ROUNDS[:1], "mpi", "horovod") is None


def test_the_table_has_a_column_a_peer() -> None:
    rows = rows_of_hosts(ROUNDS)
    assert rows.head[-1] == "× horovod"
    assert rows.body == (
        (
            "mpi",
            "1,000",
            "900 – 1,000",
            "1000.0",
            "5 MB",
            "4 MB",
            "≈ 6 MB",
            "300 ms",
            "800 ms",
            "50 ms",
            "2.50 (2.00 – 3.00)",
        ),
        (
            "horovod",
            "400",
            "300 – 500",
            "2500.0",
            "5 MB",
            "unknown",
            "unknown",
            "unknown",
            "unknown",
            "unknown",
            "1.00 (1.00 – 1.00)",
        ),
    )
    assert rows_of_hosts([measured(0, "mpi", 1000, None)]).body[0][4] == "unknown"


def test_what_the_numbers_are_of() -> None:
    assert (
        "4 hosts (network namespaces that share the cores of this machine) with links of 200 Mbit/s each way and 10 µs"
        in Measured(4, Link(200, 10), []).fact
    )
    assert "on loopback" in Measured(4, None, []).fact
    assert Measured(4, None, ROUNDS).as_json()["mbit"] is None
