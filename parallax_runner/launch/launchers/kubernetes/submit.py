"""Submits a job: checks what the cluster has, removes an earlier job of the run, and creates all objects."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch.launchers.kubernetes.api import Api
from parallax_runner.launch.launchers.kubernetes.job_status import end_of
from parallax_runner.launch.launchers.kubernetes.objects import secret_of
from parallax_runner.launch.launchers.kubernetes.pod_template import RUN_LABEL

# The first version in which a Job ends with its driver's pod (spec.successPolicy).
LEAST_VERSION = (1, 31)
POLL_SECS = 0.5
# How long an object may exist after its deletion, and after the deletion of its owner by somebody else.
GONE_SECS = 120.0
COLLECTED_SECS = 5.0
SHARED = "ReadWriteMany"


def check_cluster(api: Api, claims: Mapping[str, bool]) -> None:
    """Checks all that can be known before the plan is made. `claims` maps each claim to whether the pods write to it.
    Raises LaunchError if the version of Kubernetes is too old, or if the namespace or a claim does not exist."""
    if api.version < LEAST_VERSION:
        found, least = (".".join(map(str, version)) for version in (api.version, LEAST_VERSION))
        raise LaunchError(f"this cluster has Kubernetes {found}, expected {least} or later").about(
            Setting("cluster", "kubernetes")
        )
    _check_namespace(api)
    for name, is_written in claims.items():
        _check_claim(api, name, is_written=is_written)


def submit(api: Api, objects: Sequence[Mapping[str, Any]]) -> None:
    """Creates the objects of a job, and the Secret of its rendezvous. The job, which is the first of `objects`, owns
    the others. Without the Secret, which comes last, no container starts.

    Raises LaunchError if the run has a job that has not ended, or if the server refuses an object. Then nothing is
    left behind.
    """
    job = objects[0]
    name = str(job["metadata"]["name"])
    every = [*objects, secret_of(name, secrets.token_hex(32))]
    wait_secs = GONE_SECS if _remove_earlier(api, job) else COLLECTED_SECS
    for content in every:
        _create(api, content, wait_secs, is_trial=True)
    created = _create(api, job, wait_secs)
    try:
        for content in every[1:]:
            _create(api, _owned(content, created), wait_secs)
    except BaseException:
        api.delete(str(job["kind"]), name)
        raise


def _check_namespace(api: Api) -> None:
    try:
        exists = api.has_namespace()
    except LaunchError as error:
        if _may_be_forbidden(error):  # many users may create jobs, but not read their namespace
            return
        raise
    if not exists:
        raise LaunchError("this namespace does not exist").about(Setting("cluster.namespace", api.namespace))


def _check_claim(api: Api, name: str, *, is_written: bool) -> None:
    try:
        claim = api.read_claim(name)
    except LaunchError as error:
        if _may_be_forbidden(error):
            return
        raise
    if claim is None:
        raise LaunchError(f"the namespace {api.namespace} has no claim {name}").about(
            Setting("cluster.volumes", name), remedy="create the PersistentVolumeClaim first"
        )
    modes = claim["spec"].get("accessModes", [])
    if is_written and SHARED not in modes:
        note = (
            f"the claim {name} has the access modes {', '.join(modes)}, without {SHARED}: all pods need the same node"
        )
        print(f"parallax_runner: {note}", file=sys.stderr)


def _may_be_forbidden(error: LaunchError) -> bool:
    return getattr(error.__cause__, "status", None) == 403


def _remove_earlier(api: Api, job: Mapping[str, Any]) -> bool:
    """Deletes the job of an earlier submission of this run, if it has ended. Kubernetes then deletes what the job owns.
    Returns whether there was one."""
    kind, name = str(job["kind"]), str(job["metadata"]["name"])
    earlier = api.read(kind, name)
    if earlier is None:
        return False
    if earlier["metadata"].get("labels", {}).get(RUN_LABEL) != name:
        raise _taken(api, kind, name)
    if end_of(earlier) is None:
        raise LaunchError(f"the {kind} {name} of this run has not ended in the namespace {api.namespace}").about(
            Setting("cluster", "kubernetes"),
            remedy=f"wait for it, or end it with kubectl delete {kind.lower()} {name} --namespace={api.namespace}",
        )
    api.delete(kind, name)
    deadline = time.monotonic() + GONE_SECS
    while api.read(kind, name) is not None:
        if time.monotonic() > deadline:
            raise LaunchError(f"the earlier {kind} {name} still exists {GONE_SECS:g} s after it was deleted").about(
                Setting("cluster", "kubernetes")
            )
        time.sleep(POLL_SECS)
    return True


def _create(api: Api, content: Mapping[str, Any], wait_secs: float, *, is_trial: bool = False) -> dict[str, Any]:
    """Creates an object. Waits up to `wait_secs` until an object with its name is gone, which an ended job owned."""
    deadline = time.monotonic() + wait_secs
    created = api.create(content, is_trial=is_trial)
    while created is None and time.monotonic() < deadline:
        time.sleep(POLL_SECS)
        created = api.create(content, is_trial=is_trial)
    if created is None:
        raise _taken(api, content["kind"], content["metadata"]["name"])
    return created


def _taken(api: Api, kind: str, name: str) -> LaunchError:
    return LaunchError(f"the namespace {api.namespace} has another {kind} {name}").about(
        Setting("cluster", "kubernetes"), remedy="delete it, or set another cluster.job_name"
    )


def _owned(content: Mapping[str, Any], owner: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the object with the reference that makes Kubernetes delete it with its owner."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**content, "metadata": {**content["metadata"], "ownerReferences": [reference]}}
