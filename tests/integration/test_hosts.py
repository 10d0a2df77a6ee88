"""Runs on several hosts: namespaces of this machine if these can be made, and hosts that do not exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.hosts import network
from tests.integration.conftest import ENDLESS
from tests.integration.runs import launch

BENCH_SECS = 400
MISSING = network.missing()
needs_network = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

# Runs the rest of the command as a user who can make no namespace: no capabilities, and no user namespaces left.
WITHOUT_NAMESPACES = (
    *("unshare", "--user", "--map-root-user", "sh", "-c"),
    'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all -- "$@"',
    "sh",
)

TINY_DLRM = (
    *("experiment=dlrm_keras", "data.cardinalities=[100,3,5000]", "model.max_rows=500", "data.examples=5000"),
    *("model.optimizer=sgd", "model.learning_rate=0.5", "data.batch_size=32"),
)
TINY_RESNET = ("experiment=resnet", "model.filters=4", "model.blocks_per_stage=1", "data.image_size=8")


def run_module(
    module: str, *arguments: str, cwd: Path, before: tuple[str, ...] = (), limit_secs: float = BENCH_SECS
) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=limit_secs)


def test_a_host_that_is_not_there_is_named(tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\necho "ssh: connect to host $1 port 22: No route to host" >&2\nexit 255\n')
    shell.chmod(0o755)
    run = launch(
        "model=simple",
        "comm=ps",
        "cluster.resource_info=['localhost: 0','192.0.2.7: 0']",
        f"cluster.remote_shell={shell}",
        "tracking=off",
        cwd=tmp_path / "run",
    )
    assert run.exit_status == 1
    assert "host '192.0.2.7' in cluster.resource_info cannot be reached: " in run.stderr
    assert "Traceback" not in run.stderr
    assert run.summary["status"] == "failed" and "192.0.2.7" in run.summary["error"]
    run.expect_nothing_started()


@pytest.fixture(scope="module")
def two_hosts(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("two_hosts")
    done = run_module("tests.integration.two_hosts", str(folder), *lm, *ENDLESS, "comm=hybrid", cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_network
def test_nothing_stays_on_the_hosts_of_a_killed_driver(two_hosts: dict[str, Any]) -> None:
    for module in ("parallax_runner.worker", "parallax_runner.server", "prted"):
        assert sum(module in line for line in two_hosts["there"]) >= 2, two_hosts["there"]
    assert two_hosts["left_by_killed"] == []


@needs_network
def test_hosts_listen_in_their_own_network_alone(two_hosts: dict[str, Any]) -> None:
    """A run does not listen at the addresses of other interfaces, which hosts of a cluster have."""
    own = {"h1": "10.9.0.11", "h2": "10.9.0.12", "driver": network.DRIVER_ADDRESS}
    assert set(two_hosts["addresses"]) == set(own)
    for name, addresses in two_hosts["addresses"].items():
        assert own[name] in addresses
        assert set(addresses) <= {*own.values(), "127.0.0.1", "::1"}, name


@needs_network
def test_a_host_that_loses_its_link_is_named(two_hosts: dict[str, Any]) -> None:
    assert two_hosts["exit_status"] == 1
    assert " on h2: " in two_hosts["error"], two_hosts["stderr"]
    assert "no sign of life" in two_hosts["error"]
    assert two_hosts["left_by_cut"] == []


@needs_network
def test_bench_beside_the_peers(lm: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "hosts"
    interfaces = set(psutil.net_if_addrs())
    modes = ["hybrid", "horovod", "tensorflow_ps"]
    done = run_module(
        "benchmarks",
        *("--hosts", "2", "--mbit", "500", "--repeats", "1", "--steps", "12", "--modes", ",".join(modes)),
        *("--out", str(out), *lm),
        cwd=Path.cwd(),
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((out / "hosts.json").read_text())
    assert [one["mode"] for one in told["measurements"]] == modes
    assert (told["hosts"], told["mbit"]) == (2, 500)
    for one in told["measurements"]:
        assert one["rate"] > 0 and one["unit"] == "words/s"
        assert len(one["of_each_host"]) == 2 and min(one["of_each_host"]) > 0
    # Our run's own count is close to the interfaces' counters; otherwise the counters are not those of a step.
    ours = told["measurements"][0]
    assert 0.3 * ours["counted_bytes"] < ours["sent_bytes"] < 3 * ours["counted_bytes"] + 50_000
    assert "× tensorflow_ps" in (out / "hosts.md").read_text()
    assert (out / "hosts.png").read_bytes().startswith(b"\x89PNG")
    assert set(psutil.net_if_addrs()) == interfaces
    lines = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    assert [line for line in lines if str(out) in line or "benchmarks.peers" in line] == []


def test_bench_of_a_dense_model_without_namespaces(tmp_path: Path) -> None:
    """The peers for dense gradients, and a ResNet whose loss falls."""
    out = tmp_path / "dense"
    modes = ["hybrid", "horovod_grouped", "tensorflow_ps_plain"]
    done = run_module(
        "benchmarks",
        *("--hosts", "2", "--repeats", "1", "--steps", "60", "--modes", ",".join(modes), "--out", str(out)),
        *(*TINY_RESNET, "data.noise=0.5"),
        cwd=Path.cwd(),
        before=WITHOUT_NAMESPACES if MISSING is None else (),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("measuring on loopback") + done.stdout.count("measuring on loopback") == 1
    told = json.loads((out / "hosts.json").read_text())
    assert told["mbit"] is None
    assert [one["mode"] for one in told["measurements"]] == modes
    for one in told["measurements"]:
        assert one["unit"] == "examples/s" and one["rate"] > 0
        assert one["of_each_host"] == [] and one["sent_bytes"] is None
        assert one["loss_last"] < 1.5, one  # of ten classes: 2.3 at first
    summary = json.loads((out / "runs" / "0_hybrid" / "summary.json").read_text())
    assert summary["loss_last"] < summary["loss_first"]
    assert (summary["comm"], summary["servers"]) == ("hybrid", 0)


def test_bench_beside_the_peers_in_keras(tmp_path: Path) -> None:
    """The synchronous peers begin with the weights of our ranks and take the same steps on the same batches. Keras'
    optimizers see a row more than once, which does not matter under SGD."""
    out = tmp_path / "keras"
    modes = ["sharded", "keras_horovod", "keras_multi_worker", "keras_parameter_server"]
    losses = losses_on_loopback(modes, 2, out)
    for peer in ("keras_horovod", "keras_multi_worker"):
        assert losses[peer] == pytest.approx(losses["sharded"], rel=1e-4), losses
        assert loss_of(out, f"0_{peer}", 1) == pytest.approx(loss_of(out, "0_sharded", 1), abs=2e-4)
    # It is asynchronous, with its own random draws, so only its loss is checked: it falls.
    assert losses["keras_parameter_server"] < loss_of(out, "0_keras_parameter_server", 1)


def test_bench_beside_plain_fit(tmp_path: Path) -> None:
    out = tmp_path / "fit"
    losses = losses_on_loopback(["ideal", "keras_fit"], 1, out)
    assert loss_of(out, "0_keras_fit", 1) == pytest.approx(loss_of(out, "0_ideal/0", 1), abs=2e-4)
    assert losses["keras_fit"] < loss_of(out, "0_keras_fit", 1)


def losses_on_loopback(modes: list[str], hosts: int, out: Path) -> dict[str, float]:
    """Runs scripts/bench; returns the last loss of each mode."""
    options = ("--hosts", str(hosts), "--loopback", "--repeats", "1", "--steps", "16", "--modes", ",".join(modes))
    done = run_module("benchmarks", *options, "--out", str(out), *TINY_DLRM, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    told = json.loads((out / "hosts.json").read_text())
    assert told["mbit"] is None
    assert [one["mode"] for one in told["measurements"]] == modes
    return {one["mode"]: one["loss_last"] for one in told["measurements"]}


def loss_of(out: Path, run: str, step: int) -> float:
    """Returns the loss that a run reported for a step."""
    said = (out / "runs" / run / "terminal.log").read_text()
    [loss] = re.findall(rf"^step {step}/\d+ +loss ([\d.]+)", said, re.MULTILINE)
    return float(loss)


@pytest.fixture(scope="module")
def two_hosts_manual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("two_hosts_manual")
    done = run_module("tests.integration.two_hosts_manual", str(folder), cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_network
@pytest.mark.parametrize("mode", ["hybrid", "sharded"])
def test_processes_that_somebody_starts_on_two_hosts_train(two_hosts_manual: dict[str, Any], mode: str) -> None:
    run = two_hosts_manual[mode]
    assert run["exit_status"] == 0, run["stderr"]
    assert (run["summary"]["status"], run["summary"]["steps"], run["summary"]["workers"]) == ("finished", 200, 2)
    assert run["summary"]["loss_last"] < run["summary"]["loss_first"]
    assert set(run["statuses"]) == {0} and run["left"] == []
    # A gradient of the dense variables goes each way in each step, by Gloo.
    assert min(run["sent_bytes"]) > 200 * 10_000
    for name, own in (("h1", "10.9.0.11"), ("h2", "10.9.0.12")):
        assert own in run["addresses"][name], "another host reaches it there"
        assert set(run["addresses"][name]) <= {own, "127.0.0.1", "::1"}
