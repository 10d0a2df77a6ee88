"""Runs the pods of an API server as containers of this machine, and keeps their status."""

from __future__ import annotations

import base64
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallax_runner.launch.launchers.kubernetes.objects import amount_of
from tests.kubernetes_cluster.api_server import ApiServer
from tests.kubernetes_cluster.container import Container, Place, expanded
from tests.kubernetes_cluster.memory_limit import MemoryLimit, can_limit, remove_left

ROOT = Path(__file__).parents[2]
# What the image of deploy/Dockerfile sets.
IMAGE = {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


class Kubelet:
    """All nodes of a cluster. `claims` maps claims to folders. `folder` is for its own files. New pods wait until
    `has_room` is set. `memory_bytes` has the peak and the limit of each container that has ended, if this machine can
    limit memory."""

    def __init__(self, server: ApiServer, claims: Mapping[str, Path], folder: Path) -> None:
        self._server, self._claims = server, claims
        self._folder = folder
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")
        remove_left()
        self._lock = threading.Lock()
        self._number = 0
        self._containers: dict[str, Container] = {}
        self.evicted: set[str] = set()
        self.has_room = threading.Event()
        self.has_room.set()
        self._ending_secs: dict[str, float] = {}
        self.memory_bytes: dict[str, tuple[int, int]] = {}

    def run(self, pod: dict[str, Any]) -> int:
        """Runs a pod until its container has ended. Returns its exit status."""
        name = pod["metadata"]["name"]
        self.has_room.wait()
        try:
            env = self._environment(pod, place := self._place(pod))
        except LookupError as error:
            self._state(pod, "Pending", {"waiting": {"reason": "CreateContainerConfigError", "message": str(error)}})
            while not self._has_secrets(pod):
                with self._server.changed:
                    self._server.changed.wait(0.5)
            env = self._environment(pod, place)
        (spec,) = pod["spec"]["containers"]
        limit_bytes = int(amount_of(spec["resources"]["limits"]["memory"]))
        limit = MemoryLimit(place.number, limit_bytes) if can_limit() else None
        container = Container(
            place,
            [*spec["command"], *spec["args"]],
            env,
            self._mounts(pod),
            lambda line: self._server.log(name, line),
            limit,
        )
        self._containers[name] = container
        if name in self._ending_secs:
            self.end(name, self._ending_secs[name])
        self._server.log(name)
        self._state(pod, "Running", {"running": {}})
        status = container.wait()
        self._server.log(name, is_open=False)
        phase = "Failed" if status else "Succeeded"
        conditions = [{"type": "DisruptionTarget", "status": "True"}] if name in self.evicted else []
        reason = {"reason": "OOMKilled"} if container.is_out_of_memory else {}
        if limit is not None:
            self.memory_bytes[name] = (limit.peak_bytes, limit_bytes)
            limit.remove()
        self._state(pod, phase, {"terminated": {"exitCode": status, **reason}}, conditions)
        return status

    def end(self, name: str, grace_secs: float) -> None:
        """Ends a pod as a kubelet does: SIGTERM, and SIGKILL after the time that the pod has."""
        self._ending_secs[name] = grace_secs
        container = self._containers.get(name)
        if container is None:  # it is being created
            return
        container.signal(signal.SIGTERM)
        timer = threading.Timer(grace_secs, container.signal, [signal.SIGKILL])
        timer.daemon = True
        timer.start()

    def evict(self, name: str) -> None:
        """Ends a pod as a drained or preempted node does."""
        self.evicted.add(name)
        pod = self._server.get("pods", name)
        assert pod is not None
        self.end(name, pod["spec"]["terminationGracePeriodSeconds"])

    def kill(self, name: str) -> None:
        """Ends a container as a lack of memory does."""
        self._containers[name].signal(signal.SIGKILL)

    def _state(
        self, pod: dict[str, Any], phase: str, state: dict[str, Any], conditions: list[dict[str, str]] | None = None
    ) -> None:
        about = {"name": "run", "image": "", "imageID": "", "ready": phase == "Running", "restartCount": 0}
        status = {"phase": phase, "containerStatuses": [{**about, "state": state}], "conditions": conditions or []}
        self._server.put("pods", {**pod, "status": status})

    def _place(self, pod: dict[str, Any]) -> Place:
        """Gives a pod a new address, and adds it to the names that all pods see."""
        with self._lock:
            self._number += 1
            number = self._number
            host, subdomain = pod["spec"]["hostname"], pod["spec"]["subdomain"]
            address = f"10.9.{1 + number // 200}.{1 + number % 200}"
            others = [line for line in self._hosts.read_text().splitlines() if not line.endswith(f" {host}")]
            # All pods see the same file, so it must not be replaced.
            self._hosts.write_text("\n".join([*others, f"{address} {host}.{subdomain} {host}", ""]))
        return Place(host, address, self._hosts, number)

    def _has_secrets(self, pod: dict[str, Any]) -> bool:
        references = [one.get("valueFrom", {}).get("secretKeyRef") for one in pod["spec"]["containers"][0]["env"]]
        return all(self._server.get("secrets", one["name"]) is not None for one in references if one)

    def _environment(self, pod: dict[str, Any], place: Place) -> dict[str, str]:
        env = {**IMAGE, "HOME": str(self._folder), "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))}
        index = pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
        env["JOB_COMPLETION_INDEX"] = index
        for one in pod["spec"]["containers"][0]["env"]:
            env[one["name"]] = self._value(one, place, env)
        return env

    def _value(self, one: dict[str, Any], place: Place, env: Mapping[str, str]) -> str:
        if "value" in one:
            return expanded(one["value"], env)
        source = one["valueFrom"]
        if "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "status.podIP"
            return place.address
        name, key = source["secretKeyRef"]["name"], source["secretKeyRef"]["key"]
        secret = self._server.get("secrets", name)
        if secret is None:
            raise LookupError(f'secret "{name}" not found')
        return base64.b64decode(secret["data"][key]).decode()

    def _mounts(self, pod: dict[str, Any]) -> dict[str, Path]:
        claims = {one["name"]: one["persistentVolumeClaim"]["claimName"] for one in pod["spec"]["volumes"]}
        mounts = pod["spec"]["containers"][0]["volumeMounts"]
        return {one["mountPath"]: self._claims[claims[one["name"]]] for one in mounts}
