"""The objects of a job, as the API server reads them: the Job or JobSet, its Service and its NetworkPolicy.

The Secret with the secret of the rendezvous is not among them, because they are written to `job.yaml`.
"""

from __future__ import annotations

import base64
from typing import Any

from parallax_runner.launch.launchers.kubernetes import names
from parallax_runner.launch.launchers.kubernetes.manifest import Form, Group, Manifest, Resources
from parallax_runner.launch.launchers.kubernetes.pod_template import KEY_IN_SECRET, RUN_LABEL, pod_template

JOBSET_GROUP, JOBSET_VERSION = "jobset.x-k8s.io", "v1alpha2"
# The exit statuses of a container that a signal ended: SIGKILL, which also follows too much memory, and SIGTERM. After
# any other status, a new pod would fail for the same reason.
ENDED_BY_SIGNAL = (137, 143)
_UNITS: dict[str, float] = {"": 1, "m": 1e-3, **{unit: 1000**n for n, unit in enumerate("kMGTP", 1)}}
_UNITS |= {f"{unit.upper()}i": 1024**n for n, unit in enumerate("kMGTP", 1)}


def objects_of(manifest: Manifest) -> list[dict[str, Any]]:
    """Returns the objects in `job.yaml`. The first one is the job, which owns the others."""
    if manifest.form is Form.JOBSET:
        return [_jobset(manifest), _network_policy(manifest)]
    return [_indexed_job(manifest), _service(manifest), _network_policy(manifest)]


def kinds_of(form: Form) -> tuple[str, ...]:
    """Returns the kinds of the objects that the submission of a job creates. JobSet creates the Service itself."""
    service = ("Service",) if form is Form.JOB else ()
    return (form.kind, *service, "NetworkPolicy", "Secret")


def secret_of(job: str, secret: str) -> dict[str, Any]:
    """Returns the Secret of a job's rendezvous."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": names.secret_name(job), "labels": {RUN_LABEL: job}},
        "type": "Opaque",
        "immutable": True,
        "data": {KEY_IN_SECRET: base64.b64encode(secret.encode()).decode()},
    }


def _metadata(manifest: Manifest) -> dict[str, Any]:
    namespace = {} if manifest.namespace is None else {"namespace": manifest.namespace}
    return {"name": manifest.name, **namespace, "labels": {RUN_LABEL: manifest.name}}


def _kept(manifest: Manifest) -> dict[str, int]:
    return {} if manifest.keep_secs is None else {"ttlSecondsAfterFinished": manifest.keep_secs}


def _jobset(manifest: Manifest) -> dict[str, Any]:
    """Returns the JobSet. Its Jobs replace lost pods, so that it restarts nothing itself. Its status is that of the
    driver's Job, whose end also ends the other pods."""
    return {
        "apiVersion": f"{JOBSET_GROUP}/{JOBSET_VERSION}",
        "kind": manifest.form.kind,
        "metadata": _metadata(manifest),
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": manifest.name,
                "publishNotReadyAddresses": True,
            },
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [names.DRIVER]},
            "failurePolicy": {"maxRestarts": 0},
            **_kept(manifest),
            "replicatedJobs": [_replicated_job(manifest, group) for group in manifest.groups],
        },
    }


def _replicated_job(manifest: Manifest, group: Group) -> dict[str, Any]:
    template = pod_template(manifest, group.role, group.resources)
    return {
        "name": group.role,
        "replicas": 1,
        "template": {"spec": {**_job_spec(manifest, group.count), "template": template}},
    }


def _indexed_job(manifest: Manifest) -> dict[str, Any]:
    """Returns the Indexed Job. The pod with index 0 is the driver, whose end ends the job and the other pods."""
    template = pod_template(manifest, None, _of_any_role(manifest.groups))
    template["spec"]["subdomain"] = manifest.name
    total = sum(group.count for group in manifest.groups)
    return {
        "apiVersion": "batch/v1",
        "kind": manifest.form.kind,
        "metadata": _metadata(manifest),
        "spec": {
            **_job_spec(manifest, total),
            "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
            **_kept(manifest),
            "template": template,
        },
    }


def _job_spec(manifest: Manifest, count: int) -> dict[str, Any]:
    """Returns what the Indexed Job and the Jobs of a JobSet share. A failed pod is replaced only when it has ended, so
    that two pods never have the same name."""
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimit": manifest.max_replacements,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [*ENDED_BY_SIGNAL]}},
            ]
        },
    }


def _of_any_role(groups: tuple[Group, ...]) -> Resources:
    """Returns resources that suffice for each role, since all pods of a Job request the same."""
    all_resources = [group.resources for group in groups]
    return Resources(
        cpus=max(one.cpus for one in all_resources),
        memory=max((one.memory for one in all_resources), key=amount_of),
        gpus=max(one.gpus for one in all_resources),
    )


def amount_of(quantity: str) -> float:
    """Returns the number that a quantity stands for. `1Ki` is 1024."""
    number = quantity.rstrip("".join(set("".join(_UNITS))))
    return float(number) * _UNITS[quantity.removeprefix(number)]


def _service(manifest: Manifest) -> dict[str, Any]:
    """Returns the headless Service, which gives each pod a name before the pod is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(manifest),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {RUN_LABEL: manifest.name},
        },
    }


def _network_policy(manifest: Manifest) -> dict[str, Any]:
    """Returns the policy that only pods of the job may connect to its pods: TensorFlow's servers have no password."""
    own = {"matchLabels": {RUN_LABEL: manifest.name}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(manifest),
        "spec": {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]},
    }
