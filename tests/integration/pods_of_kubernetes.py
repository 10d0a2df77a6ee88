"""Runs of cluster=kubernetes whose pods are namespaces of this machine: `python -m
tests.integration.pods_of_kubernetes FOLDER CASE`. Prints as JSON what became of the run."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hosts import network
from tests.kubernetes_cluster.api_server import ApiServer, wait_for
from tests.kubernetes_cluster.controllers import Cluster
from tests.kubernetes_cluster.kubelet import Kubelet

ROOT = Path(__file__).parents[2]
QUICK = ("experiment=quick", "ckpt=default", "tracking=off", "train.log_every=1")
# A model, and data whose batches are slow until the file `fast` is in the volume of the pods.
SLOW_MODEL = "_target_: tests.integration.resumable.build_deterministic"
SLOW_DATA = "{{_target_: tests.integration.elastic.load, seed: 3, batch_size: 6, fast: {fast}}}"
STARTED_SECS = 300.0
END_SECS = 600.0
TOO_LITTLE = "300Mi"


@dataclass
class Pods:
    """A cluster, and the command whose job runs in it."""

    cluster: Cluster
    kubelet: Kubelet
    server: ApiServer
    command: subprocess.Popen[str]
    lines: Path

    def shown(self) -> str:
        """What the command has printed so far."""
        return self.lines.read_text()

    def wait_for_step(self, step: int) -> None:
        """Waits until a step is done."""
        wait_for(lambda: self._has(step), STARTED_SECS)

    def _has(self, step: int) -> bool:
        assert self.command.poll() is None, self.shown()
        return any(int(number) >= step for number in re.findall(r"^step (\d+)/", self.shown(), re.MULTILINE))

    def pod(self, role_or_index: str) -> str:
        """The name of a running pod."""
        (name, *_) = wait_for(lambda: self.cluster.pods(role_or_index), STARTED_SECS)
        return str(name)


@contextmanager
def submitted(folder: Path, *overrides: str, has_jobsets: bool = False, run: Sequence[str] = QUICK) -> Iterator[Pods]:
    """Submits a run, and follows it, in a cluster with one claim."""
    claim, mounted = folder / "claim", folder / "mounted"
    for made in (claim, mounted, folder / "node", folder / "cwd"):
        made.mkdir(parents=True)
    seed = random.randrange(1 << 30)
    print(f"seed of the pods' order: {seed}", file=sys.stderr)
    server = ApiServer(has_jobsets=has_jobsets)
    server.put("persistentvolumeclaims", {"metadata": {"name": "runs"}, "spec": {"accessModes": ["ReadWriteMany"]}})
    kubelet = Kubelet(server, {"runs": claim}, folder / "node")
    given = [*run, "cluster=kubernetes", "cluster.image=image:1", f"cluster.volumes=[runs:{mounted}]"]
    given += [
        "cluster.follow=true",
        "cluster.job_name=mine",
        "cluster.stop_secs=45",
        f"hydra.run.dir={folder / 'submitted'}",
        *overrides,
    ]
    env = {
        **os.environ,
        "KUBECONFIG": str(server.write_kubeconfig(folder / "kubeconfig")),
        "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT)),
    }
    lines = folder / "shown"
    with server, Cluster(server, kubelet, seed) as cluster, open(lines, "w") as output:
        # If this program is killed, the command ends, too: it would try for minutes to reach the API server.
        command = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "parallax_runner", *given],
            env=env,
            cwd=folder / "cwd",
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield Pods(cluster, kubelet, server, command, lines)
        finally:
            command.kill()
            command.wait()


def ended(pods: Pods, folder: Path) -> dict[str, Any]:
    """Waits for the end of the run, and returns what became of it."""
    status = pods.command.wait(END_SECS)
    wait_for(lambda: not any(pods.cluster.pods(str(index)) for index in range(8)), 90.0)
    summary = folder / "claim" / "mine" / "summary.json"
    return {
        "exit_status": status,
        "shown": pods.shown(),
        "summary": json.loads(summary.read_text()) if summary.exists() else {},
        "statuses": {
            pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
            for pod in pods.server.of("pods")
        },
        "logs": {name: [line.partition(" ")[2] for line in log.lines] for name, log in pods.server.logs.items()},
        "memory_bytes": pods.kubelet.memory_bytes,
        "local": sorted(path.name for path in (folder / "submitted").iterdir()),
    }


def hybrid(folder: Path) -> dict[str, Any]:
    """An Indexed Job with two workers and a server, undisturbed."""
    with submitted(folder, "comm=hybrid", "train.steps=4") as pods:
        return ended(pods, folder)


def sharded(folder: Path) -> dict[str, Any]:
    """A JobSet with two workers, one of which is killed, as by a lack of memory."""
    more = ("comm=sharded", "train.steps=1000", "ckpt.save_steps=50", "train.max_restarts=1")
    with submitted(folder, *more, has_jobsets=True) as pods:
        pods.wait_for_step(60)
        pods.kubelet.kill(pods.pod("worker"))
        return ended(pods, folder)


def lost_driver(folder: Path) -> dict[str, Any]:
    """An Indexed Job whose driver's node is drained."""
    with submitted(folder, "comm=sharded", "train.steps=1000", "ckpt.save_steps=100000") as pods:
        pods.wait_for_step(6)
        pods.kubelet.evict(pods.pod("0"))
        return ended(pods, folder)


def left_worker(folder: Path) -> dict[str, Any]:
    """An Indexed Job, a worker of which is preempted and warned. The run may not restart after failures."""
    with submitted(folder, "comm=hybrid", "train.steps=1000", "ckpt.save_steps=100000", "train.max_restarts=0") as pods:
        pods.wait_for_step(6)
        pods.kubelet.evict(pods.pod("2"))
        return ended(pods, folder)


def failed(folder: Path) -> dict[str, Any]:
    """A run that fails on its own: with a worker that is killed, and without restarts."""
    with submitted(folder, "comm=sharded", "train.steps=500", "train.max_restarts=0") as pods:
        pods.wait_for_step(2)
        pods.kubelet.kill(pods.pod("1"))
        return ended(pods, folder)


def short_of_memory(folder: Path) -> dict[str, Any]:
    """A JobSet whose workers and servers need more memory than they may use."""
    with submitted(folder, "comm=sharded", "train.steps=4", f"cluster.memory={TOO_LITTLE}", has_jobsets=True) as pods:
        return ended(pods, folder)


def slow_run(folder: Path) -> Sequence[str]:
    """Returns the settings of a run that is slow until `make_fast`."""
    texts = {"model": SLOW_MODEL, "data": SLOW_DATA.format(fast=folder / "mounted" / "fast")}
    for group, text in texts.items():
        (folder / "conf" / group).mkdir(parents=True)
        (folder / "conf" / group / "mine.yaml").write_text(text)
    return ("--config-dir", str(folder / "conf"), "model=mine", "data=mine", "tracking=off", "train.log_every=25")


def make_fast(folder: Path) -> None:
    """Lets a slow run read its batches at once."""
    (folder / "claim" / "fast").touch()


def elastic(folder: Path) -> dict[str, Any]:
    """An Indexed Job that goes on with one worker while no node has room for another, and then takes one in."""
    more = ("comm=sharded", "train.steps=1000", "ckpt.save_steps=25", "train.max_restarts=1")
    size = ("cluster.workers=2", "cluster.min_workers=1", "cluster.wait_secs=15")
    with submitted(folder, *more, *size, run=slow_run(folder)) as pods:
        pods.wait_for_step(50)
        pods.kubelet.has_room.clear()
        pods.kubelet.kill(pods.pod("2"))
        wait_for(lambda: "with 1 worker instead of 2" in pods.shown(), STARTED_SECS)
        pods.kubelet.has_room.set()
        wait_for(lambda: "with 2 workers instead of 1" in pods.shown(), STARTED_SECS)
        make_fast(folder)
        return ended(pods, folder)


CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    function.__name__: function
    for function in (hybrid, sharded, lost_driver, left_worker, failed, short_of_memory, elastic)
}


def main(arguments: Sequence[str]) -> None:
    """Runs a case in a network of its own."""
    folder, case = Path(arguments[0]), arguments[1]
    for command in network.bridge_commands():
        widened = [word.replace(f"{network.DRIVER_ADDRESS}/24", f"{network.DRIVER_ADDRESS}/16") for word in command]
        subprocess.run(widened, check=True)
    began = time.monotonic()
    outcome = CASES[case](folder)
    print(json.dumps({**outcome, "secs": time.monotonic() - began}))


if __name__ == "__main__":
    network.enter([sys.executable, "-m", "tests.integration.pods_of_kubernetes", *sys.argv[1:]])
    main(sys.argv[1:])
