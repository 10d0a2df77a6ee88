"""A launcher from a package outside this repository: one module, and one YAML file in the user's own configuration."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import yaml

from tests.integration.runs import Run, Running, break_in, launch, started

# It starts workers by its own program, which is the same module and prints which worker died.
MODULE = r'''
"""Starts workers as plain processes, by one program that says which of them died first."""

import os
import re
import subprocess
import sys

from parallax_runner.config.explain import refusal
from parallax_runner.launch import bind_address, preloaded
from parallax_runner.launch.job import Command
from parallax_runner.launch.launchers.launcher import Launcher, RankExit

ENDED = re.compile(r"fork_all: worker (\d+) ended with status (-?\d+)")


class ForkAll(Launcher):
    program = "fork_all"
    rank_variable = "FORK_ALL_RANK"

    def __init__(self, nice):
        self.nice = nice

    @classmethod
    def check_config(cls, config, origins):
        nice = config.cluster.options.get("nice")
        if nice not in range(20):
            raise refusal("cluster.options.nice", origins, "expected an integer from 0 to 19", value=nice)

    @classmethod
    def from_config(cls, config, plan):
        return cls(config.cluster.options["nice"])

    def workers(self, job, cleanup):
        env = job.env | preloaded.environment() | {bind_address.TOWARDS: self.address}
        argv = [sys.executable, "-m", __name__, str(self.nice), str(job.workers), *job.worker_argv()]
        return [Command(argv, env)]

    def rank_exit(self, output):
        found = ENDED.search(output)
        return RankExit(int(found[1]), int(found[2])) if found else None


def main(nice, count, argv):
    os.nice(nice)
    workers = {}
    for rank in range(count):
        process = subprocess.Popen(argv, env=os.environ | {ForkAll.rank_variable: str(rank)})
        workers[process.pid] = rank
    while workers:
        pid, status = os.wait()
        rank, code = workers.pop(pid), os.waitstatus_to_exitcode(status)
        if code:
            print(f"fork_all: worker {rank} ended with status {code}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
'''
CLUSTER = """
defaults:
  - local
launcher: forked_workers.ForkAll
options:
  nice: 5
"""
ARGUMENTS = ("cluster=mine", "comm=ps", "model=simple", "data=linear", "optimizer=gradient_descent", "tracking=off")
FOUND_BY = ("dotted path", "entry point")


def install(folder: Path, *, is_entry_point: bool) -> None:
    """Writes the package, as `pip install` would; with an entry point its name is `fork_all`."""
    (folder / "forked_workers.py").write_text(MODULE)
    (folder / "myconf" / "cluster").mkdir(parents=True)
    named = CLUSTER.replace("forked_workers.ForkAll", "fork_all") if is_entry_point else CLUSTER
    (folder / "myconf" / "cluster" / "mine.yaml").write_text(named)
    if is_entry_point:
        metadata = folder / "forked_workers-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: forked-workers\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text("[parallax_runner.launchers]\nfork_all = forked_workers:ForkAll\n")


@pytest.fixture(scope="module", params=FOUND_BY)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("outside")
    install(folder, is_entry_point=request.param == "entry point")
    return launch("--config-dir", "myconf", *ARGUMENTS, "train.steps=4", cwd=folder, python_path=folder)


def test_both_workers_train(trained: Run) -> None:
    trained.expect_success()
    assert (trained.summary["steps"], trained.summary["workers"]) == (4, 2)
    assert trained.log_names() == {"driver.log", "fork_all.log", "server_0.log", "worker_0.log", "worker_1.log"}
    driver = (trained.run_dir / "logs" / "driver.log").read_text()
    assert "-m forked_workers 5 2 " in driver and "mpirun" not in driver
    cluster = yaml.safe_load((trained.run_dir / "config.yaml").read_text())["cluster"]
    assert cluster["launcher"] in ("forked_workers.ForkAll", "fork_all")
    assert cluster["options"] == {"nice": 5}
    assert "has no effect" not in trained.stderr


def worker(running: Running, rank: int) -> psutil.Process:
    """Returns the process of a worker, by this launcher's variable."""
    found = [
        process
        for process in running.left()
        if process.cmdline()[1:3] == ["-m", "parallax_runner.worker"]
        and process.environ().get("FORK_ALL_RANK") == str(rank)
    ]
    assert len(found) == 1
    return found[0]


def test_a_worker_that_dies_is_blamed_by_what_the_launcher_says(tmp_path: Path) -> None:
    install(tmp_path, is_entry_point=False)
    endless = ("train.steps=1000000", "train.log_every=20")
    with started("--config-dir", "myconf", *ARGUMENTS, *endless, cwd=tmp_path, python_path=tmp_path) as running:
        broken = break_in(running, lambda: worker(running, 1).kill())
    assert (broken.run.exit_status, broken.left) == (1, [])
    assert "worker 1" in broken.run.summary["error"]
    # Only the launcher's program can know the worker's exit status: the worker is that program's child, not the
    # driver's.
    assert "killed by signal 9 (SIGKILL)" in broken.run.summary["error"]


def test_gradients_that_need_mpi_are_refused(tmp_path: Path) -> None:
    install(tmp_path, is_entry_point=False)
    run = launch("--config-dir", "myconf", *ARGUMENTS, "comm=mpi", cwd=tmp_path, python_path=tmp_path)
    assert run.exit_status == 2
    assert "cluster.launcher=forked_workers.ForkAll (myconf/cluster/mine.yaml:4): it does not start MPI" in run.stderr


def test_its_options_are_checked_before_anything_starts(tmp_path: Path) -> None:
    install(tmp_path, is_entry_point=True)
    run = launch("--config-dir", "myconf", *ARGUMENTS, "cluster.options.nice=40", cwd=tmp_path, python_path=tmp_path)
    assert run.exit_status == 2
    run.expect_nothing_started()
    assert "cluster.options.nice=40 (command line): expected an integer from 0 to 19" in run.stderr
