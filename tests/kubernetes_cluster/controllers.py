"""The controllers of Jobs and JobSets: they create pods, replace failed ones, and end with the driver."""

from __future__ import annotations

import copy
import random
import threading
import uuid
from typing import Any

from tests.kubernetes_cluster.api_server import ApiServer
from tests.kubernetes_cluster.kubelet import Kubelet

INDEX = "batch.kubernetes.io/job-completion-index"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
# A real controller waits ten seconds before the first replacement.
REPLACE_SECS = 1.0
MOST_START_SECS = 1.0


class JobController:
    """Runs one Job to its end. Pods start in an order, and after times, that `chance` decides."""

    def __init__(self, server: ApiServer, kubelet: Kubelet, job: dict[str, Any], chance: random.Random) -> None:
        self._server, self._kubelet, self._job, self._chance = server, kubelet, job, chance
        self._failed = 0
        self._succeeded: set[int] = set()
        self._active: dict[int, str] = {}
        self._lock = threading.Lock()
        self.is_over = threading.Event()

    def start(self) -> None:
        """Creates a pod for each index."""
        indexes = list(range(self._job["spec"]["completions"]))
        self._chance.shuffle(indexes)
        for index in indexes:
            self._start_pod(index, self._chance.uniform(0, MOST_START_SECS))

    def end(self) -> None:
        """Ends all pods, as if the Job were deleted."""
        self.is_over.set()
        with self._lock:
            active = list(self._active.values())
        for name in active:
            self._kubelet.end(name, self._job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])

    def _start_pod(self, index: int, after_secs: float) -> None:
        threading.Thread(target=self._run_pod, args=(index, after_secs), daemon=True).start()

    def _run_pod(self, index: int, after_secs: float) -> None:
        if self.is_over.wait(after_secs):
            return
        pod = self._pod(index)
        name = pod["metadata"]["name"]
        self._server.put("pods", pod)
        with self._lock:
            self._active[index] = name
        status = self._kubelet.run(pod)
        with self._lock:
            del self._active[index]
        if self.is_over.is_set():
            return
        self._note_end(index, name, status)

    def _note_end(self, index: int, name: str, status: int) -> None:
        if status == 0:
            self._succeeded.add(index)
            self._note_success()
            return
        action = self._action(name, status)
        if action == "FailJob":
            self._finish("Failed", "PodFailurePolicy", f"Container run for pod {name} failed with exit code {status}")
            return
        self._failed += action == "Count"
        if self._failed > self._job["spec"]["backoffLimit"]:
            self._finish("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
            return
        self._start_pod(index, REPLACE_SECS)

    def _note_success(self) -> None:
        spec = self._job["spec"]
        rules = spec.get("successPolicy", {}).get("rules", [])
        is_enough = any({int(rule["succeededIndexes"])} <= self._succeeded for rule in rules)
        if is_enough or len(self._succeeded) == spec["completions"]:
            self._finish("Complete", "CompletionsReached", "")

    def _action(self, name: str, status: int) -> str:
        """What the pod failure policy does with a failed pod. The first rule that matches decides."""
        for rule in self._job["spec"]["podFailurePolicy"]["rules"]:
            if "onPodConditions" in rule and name in self._kubelet.evicted:
                return str(rule["action"])
            codes = rule.get("onExitCodes")
            if codes is not None:
                assert codes["operator"] == "NotIn"
                if status not in codes["values"]:
                    return str(rule["action"])
        return "Count"

    def _finish(self, condition: str, reason: str, message: str) -> None:
        self.end()
        told = {"type": condition, "status": "True", "reason": reason, "message": message}
        self._server.put("jobs", {**self._job, "status": {"conditions": [told]}})

    def _pod(self, index: int) -> dict[str, Any]:
        job = self._job["metadata"]["name"]
        template = copy.deepcopy(self._job["spec"]["template"])
        host = f"{job}-{index}"
        labels = {**template["metadata"]["labels"], INDEX: str(index), "job-name": job}
        spec = {**template["spec"], "hostname": host}
        return {"metadata": {"name": f"{host}-{uuid.uuid4().hex[:5]}", "labels": labels}, "spec": spec}


class Cluster:
    """Watches an API server, and runs each Job and JobSet that is created. Use it as a context manager."""

    def __init__(self, server: ApiServer, kubelet: Kubelet, seed: int) -> None:
        self._server, self._kubelet = server, kubelet
        self._chance = random.Random(seed)
        self._controllers: dict[str, JobController] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Cluster:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for controller in self._controllers.values():
            controller.end()

    def pods(self, role_or_index: str, *, phase: str = "Running") -> list[str]:
        """The names of pods with an index (of an Indexed Job) or a role (of a JobSet)."""
        return [
            str(pod["metadata"]["name"])
            for pod in self._server.of("pods")
            if pod.get("status", {}).get("phase") == phase
            and role_or_index in (pod["metadata"]["labels"].get(label) for label in (INDEX, REPLICATED_JOB))
        ]

    def _watch(self) -> None:
        while not self._is_over.wait(0.1):
            for jobset in self._server.of("jobsets"):
                self._control_jobset(jobset)
            for job in self._server.of("jobs"):
                uid = job["metadata"]["uid"]
                if uid not in self._controllers:
                    self._controllers[uid] = JobController(self._server, self._kubelet, job, self._chance)
                    self._controllers[uid].start()

    def _control_jobset(self, jobset: dict[str, Any]) -> None:
        if "status" in jobset:
            return
        jobs = [self._child(jobset, one) for one in jobset["spec"]["replicatedJobs"]]
        ends = {
            job["metadata"]["labels"][REPLICATED_JOB]: job["status"]["conditions"][0] for job in jobs if "status" in job
        }
        failed = next((end for end in ends.values() if end["type"] == "Failed"), None)
        targets = jobset["spec"]["successPolicy"]["targetReplicatedJobs"]
        if failed is not None:
            self._end_jobset(jobset, jobs, "Failed", failed["message"])
        elif all(ends.get(target, {}).get("type") == "Complete" for target in targets):
            self._end_jobset(jobset, jobs, "Completed", "jobset completed successfully")

    def _end_jobset(self, jobset: dict[str, Any], jobs: list[dict[str, Any]], condition: str, message: str) -> None:
        for job in jobs:
            self._controllers[job["metadata"]["uid"]].end()
        told = {"type": condition, "status": "True", "message": message}
        self._server.put("jobsets", {**jobset, "status": {"conditions": [told]}})

    def _child(self, jobset: dict[str, Any], replicated: dict[str, Any]) -> dict[str, Any]:
        """Returns the Job of a replicated job, and creates it if it does not exist."""
        name = f"{jobset['metadata']['name']}-{replicated['name']}-0"
        found = self._server.get("jobs", name)
        if found is not None:
            return found
        job = copy.deepcopy(replicated["template"])
        label = {REPLICATED_JOB: replicated["name"]}
        owner = {"uid": jobset["metadata"]["uid"]}
        job["metadata"] = {"name": name, "labels": label, "ownerReferences": [owner]}
        template = job["spec"]["template"]
        template["metadata"]["labels"].update(label)
        template["spec"]["subdomain"] = jobset["spec"]["network"]["subdomain"]
        return self._server.put("jobs", job)
