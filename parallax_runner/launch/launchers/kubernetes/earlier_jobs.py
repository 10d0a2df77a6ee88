"""The jobs that earlier submissions of a run have left."""

from __future__ import annotations

import time
from typing import Any

from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch.launchers.kubernetes.api import Api
from parallax_runner.launch.launchers.kubernetes.job_status import end_of
from parallax_runner.launch.launchers.kubernetes.manifest import Form
from parallax_runner.launch.launchers.kubernetes.pod_template import RUN_LABEL
from parallax_runner.launch.launchers.kubernetes.refusals import is_forbidden

POLL_SECS = 0.5
# How long an object may exist after its deletion.
GONE_SECS = 120.0


def ended_jobs(api: Api, form: Form, name: str) -> list[str]:
    """Returns the kinds of the jobs that earlier submissions of this run have left. They may have had another form.

    Raises LaunchError if one of them has not ended, or if a job of somebody else has the name and the kind of the new
    one.
    """
    own = api.read(form.kind, name)
    if own is not None and not _is_of_run(own):
        raise taken(api, form.kind, name)
    found = {form.kind: own}
    for other in Form:
        if other is not form:
            found[other.kind] = _job_of_other_kind(api, other.kind, name)
    left = {kind: job for kind, job in found.items() if job is not None}
    for kind, job in left.items():
        _expect_ended(api, kind, job)
    return list(left)


def remove_ended_jobs(api: Api, form: Form, name: str) -> bool:
    """Deletes the jobs that `ended_jobs` finds, and waits until they are gone. Kubernetes then deletes what they own.
    Returns whether there were any."""
    kinds = ended_jobs(api, form, name)
    for kind in kinds:
        api.delete(kind, name)
    deadline_secs = time.monotonic() + GONE_SECS
    for kind in kinds:
        _wait_until_gone(api, kind, name, deadline_secs)
    return bool(kinds)


def taken(api: Api, kind: str, name: str) -> LaunchError:
    """Returns the error that somebody else's object has the name of a new one."""
    return LaunchError(f"the namespace {api.namespace} has another {kind} {name}").about(
        Setting("cluster", "kubernetes"), remedy="delete it, or set another cluster.job_name"
    )


def _is_of_run(job: dict[str, Any]) -> bool:
    """Returns whether a submission of a run has created a job."""
    metadata = job["metadata"]
    return bool(metadata.get("labels", {}).get(RUN_LABEL) == metadata["name"])


def _job_of_other_kind(api: Api, kind: str, name: str) -> dict[str, Any] | None:
    """Returns the job of a kind that the new job does not have, if an earlier submission of the run has left one.
    Returns None if these credentials may not read this kind."""
    try:
        found = api.read(kind, name)
    except LaunchError as error:
        if is_forbidden(error):
            return None
        raise
    return found if found is not None and _is_of_run(found) else None


def _expect_ended(api: Api, kind: str, job: dict[str, Any]) -> None:
    if end_of(job) is not None:
        return
    name = job["metadata"]["name"]
    raise LaunchError(f"the {kind} {name} of this run has not ended in the namespace {api.namespace}").about(
        Setting("cluster", "kubernetes"),
        remedy=f"wait for it, or end it with kubectl delete {kind.lower()} {name} --namespace={api.namespace}",
    )


def _wait_until_gone(api: Api, kind: str, name: str, deadline_secs: float) -> None:
    while api.read(kind, name) is not None:
        if time.monotonic() > deadline_secs:
            raise LaunchError(f"the earlier {kind} {name} still exists {GONE_SECS:g} s after it was deleted").about(
                Setting("cluster", "kubernetes"),
                remedy=f"see what holds it: kubectl describe {kind.lower()} {name} --namespace={api.namespace}",
            )
        time.sleep(POLL_SECS)
