"""Submits a job: checks what the cluster has, and creates all objects."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch.launchers.kubernetes.api import Api
from parallax_runner.launch.launchers.kubernetes.earlier_jobs import GONE_SECS, POLL_SECS, remove_ended_jobs, taken
from parallax_runner.launch.launchers.kubernetes.manifest import Form
from parallax_runner.launch.launchers.kubernetes.objects import kinds_of, secret_of
from parallax_runner.launch.launchers.kubernetes.refusals import is_forbidden

# The first version in which a Job ends with its driver's pod (spec.successPolicy).
LEAST_VERSION = (1, 31)
# How long an object may exist after somebody else has deleted its owner.
COLLECTED_SECS = 5.0
SHARED = "ReadWriteMany"


def check_cluster(api: Api, claims: Mapping[str, bool]) -> None:
    """Checks what the cluster has. `claims` maps each claim to whether the pods write to it. Raises LaunchError if the
    version of Kubernetes is too old, or if the namespace or a claim does not exist."""
    if api.version < LEAST_VERSION:
        found, least = (".".join(map(str, version)) for version in (api.version, LEAST_VERSION))
        raise LaunchError(f"this cluster has Kubernetes {found}, expected {least} or later").about(
            Setting("cluster", "kubernetes")
        )
    _check_namespace(api)
    for name, is_written in claims.items():
        _check_claim(api, name, is_written=is_written)


def check_permissions(api: Api, form: Form) -> None:
    """Raises LaunchError if these credentials may not create the objects of a job."""
    forbidden = next((kind for kind in kinds_of(form) if not _may_create(api, kind)), None)
    if forbidden is not None:
        raise LaunchError(f"these credentials may not create a {forbidden} in the namespace {api.namespace}").about(
            Setting("cluster", "kubernetes"),
            Setting("cluster.namespace", api.namespace),
            remedy="set a namespace in which they may, or ask the administrators of the cluster",
        )


def submit(api: Api, form: Form, objects: Sequence[Mapping[str, Any]]) -> None:
    """Creates the objects of a job, and the Secret of its rendezvous. The job, which is the first of `objects`, owns
    the others. Without the Secret, which comes last, no container starts.

    Raises LaunchError if the run has a job that has not ended, or if the server refuses an object. Then nothing is
    left behind.
    """
    job = objects[0]
    name = str(job["metadata"]["name"])
    every = [*objects, secret_of(name, secrets.token_hex(32))]
    wait_secs = GONE_SECS if remove_ended_jobs(api, form, name) else COLLECTED_SECS
    for content in every:
        _create(api, content, wait_secs, is_trial=True)
    created = _create(api, job, wait_secs)
    try:
        for content in every[1:]:
            _create(api, _owned(content, created), wait_secs)
    except BaseException:
        api.delete(str(job["kind"]), name)
        raise


def _may_create(api: Api, kind: str) -> bool:
    try:
        return api.may_create(kind)
    except LaunchError as error:
        if is_forbidden(error):  # the server will tell when the object is created
            return True
        raise


def _check_namespace(api: Api) -> None:
    try:
        exists = api.has_namespace()
    except LaunchError as error:
        if is_forbidden(error):  # many users may create jobs, but not read their namespace
            return
        raise
    if not exists:
        raise LaunchError("this namespace does not exist").about(Setting("cluster.namespace", api.namespace))


def _check_claim(api: Api, name: str, *, is_written: bool) -> None:
    try:
        claim = api.read_claim(name)
    except LaunchError as error:
        if is_forbidden(error):
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


def _create(api: Api, content: Mapping[str, Any], wait_secs: float, *, is_trial: bool = False) -> dict[str, Any]:
    """Creates an object. Waits up to `wait_secs` until an object with its name is gone, which an ended job owned."""
    deadline = time.monotonic() + wait_secs
    created = api.create(content, is_trial=is_trial)
    while created is None and time.monotonic() < deadline:
        time.sleep(POLL_SECS)
        created = api.create(content, is_trial=is_trial)
    if created is None:
        raise taken(api, content["kind"], content["metadata"]["name"])
    return created


def _owned(content: Mapping[str, Any], owner: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the object with the reference that makes Kubernetes delete it with its owner."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**content, "metadata": {**content["metadata"], "ownerReferences": [reference]}}
