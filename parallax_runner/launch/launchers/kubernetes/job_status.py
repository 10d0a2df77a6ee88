"""Reads how a job and its pods are, from the objects that the API server returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parallax_runner.launch.launchers.kubernetes import names
from parallax_runner.launch.launchers.kubernetes.manifest import Form

# The last conditions of a Job and of a JobSet.
_ENDED_WELL = ("Complete", "Completed")
_FAILED = "Failed"
# Why the kernel has ended a container.
_OUT_OF_MEMORY = "OOMKilled"
# Why a container waits that needs somebody's help.
_STUCK = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError")


@dataclass(frozen=True)
class End:
    """How a job has ended. `reason` is empty if it ended well."""

    is_good: bool
    reason: str


def end_of(job: Mapping[str, Any]) -> End | None:
    """Returns how a Job or JobSet has ended, or None if it has not ended."""
    for one in _conditions(job):
        if one["status"] != "True":
            continue
        if one["type"] in _ENDED_WELL:
            return End(True, "")
        if one["type"] == _FAILED:
            return End(False, ": ".join(part for part in (one.get("reason"), one.get("message")) if part))
    return None


def problem_of(pod: Mapping[str, Any]) -> str | None:
    """Returns why a pod does not start, or that it had too little memory, in one sentence. Otherwise, returns None."""
    name = pod["metadata"]["name"]
    for one in _conditions(pod):
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return f"the pod {name} has no node ({one.get('reason')}): {_in_one_line(one.get('message'))}"
    if _container(pod).get("state", {}).get("terminated", {}).get("reason") == _OUT_OF_MEMORY:
        return f"the pod {name} has used more memory than its limit ({_OUT_OF_MEMORY}): set a larger cluster.memory"
    state = _container(pod).get("state", {}).get("waiting")
    if state is None or state.get("reason") not in _STUCK:
        return None
    image = pod["spec"]["containers"][0]["image"]
    about = f" {image}" if "Image" in state["reason"] else ""
    return f"the pod {name} cannot start its container{about} ({state['reason']}): {_in_one_line(state.get('message'))}"


def wanted_pods(job: Mapping[str, Any]) -> int:
    """Returns how many pods a Job or JobSet has while all its processes run."""
    spec = job["spec"]
    if "replicatedJobs" not in spec:
        return int(spec["completions"])
    return sum(int(one["template"]["spec"]["completions"]) for one in spec["replicatedJobs"])


def failed_creation_of(event: Mapping[str, Any], job: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the name of the Job whose pods could not be created, and why in one sentence. Returns None for an event
    of another job, or of an earlier job with the same name."""
    about, name = event["involvedObject"], job["metadata"]["name"]
    jobs = (name, *(f"{name}-{role}-0" for role in names.ROLES))  # a JobSet has one for each role
    if about["kind"] != Form.JOB.kind or about["name"] not in jobs:
        return None
    if _second_of(event["metadata"]["creationTimestamp"]) < _second_of(job["metadata"]["creationTimestamp"]):
        return None
    return about["name"], f"the pods of the Job {about['name']} cannot be created: {_in_one_line(event.get('message'))}"


def _second_of(moment: str) -> str:
    """Returns a time in UTC without its fraction and zone, which the client writes in several ways."""
    return moment[: len("2026-01-01T00:00:00")]


def has_log(pod: Mapping[str, Any]) -> bool:
    """Returns whether the container of a pod has started."""
    state = _container(pod).get("state", {})
    return "running" in state or "terminated" in state


def exit_status_of(pod: Mapping[str, Any]) -> int | None:
    """Returns the exit status of a pod's container, or None if the container has not ended."""
    ended = _container(pod).get("state", {}).get("terminated")
    return None if ended is None else int(ended["exitCode"])


def _conditions(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = content.get("status", {}).get("conditions") or []
    return found


def _container(pod: Mapping[str, Any]) -> dict[str, Any]:
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    found: dict[str, Any] = statuses[0]
    return found


def _in_one_line(text: str | None) -> str:
    return " ".join((text or "no reason is known").split())
