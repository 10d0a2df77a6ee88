"""The template of the pods of a job, as the API server reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallax_runner.launch.launchers.kubernetes import names
from parallax_runner.launch.launchers.kubernetes.formats import Toleration, Volume
from parallax_runner.launch.launchers.kubernetes.manifest import Manifest, Pods, Resources
from parallax_runner.launch.launchers.kubernetes.names import saving_secs
from parallax_runner.launch.launchers.manual.secret import VARIABLE

RUN_LABEL = "parallax-runner/run"
KEY_IN_SECRET = "secret"
CONTAINER = "run"
# The user and the group of the image that deploy/Dockerfile builds. Kubernetes gives the claims to this group.
USER = GROUP = 1000
ENTRY = ("python", "-m", "parallax_runner.launch.launchers.kubernetes.pod")


def pod_template(manifest: Manifest, role: str | None, resources: Resources) -> dict[str, Any]:
    """Returns the template of the pods with a role. Without a role, each pod finds its role by its index."""
    pods = manifest.pods
    spec: dict[str, Any] = {
        # A failed pod is replaced, because the rules for failed pods need this policy.
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": pods.stop_secs,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _security(),
        "containers": [_container(manifest, role, resources)],
        "volumes": [_volume(number, volume) for number, volume in enumerate(pods.volumes)],
        **_placement(pods),
    }
    return {"metadata": {"labels": {RUN_LABEL: manifest.name}}, "spec": spec}


def _placement(pods: Pods) -> dict[str, Any]:
    """Returns what decides on which nodes the pods run, and as which user of the cluster. Omits what is not set."""
    found = {
        "serviceAccountName": pods.service_account,
        "imagePullSecrets": [{"name": name} for name in pods.image_pull_secrets],
        "nodeSelector": dict(pods.node_selector),
        "tolerations": [_toleration(one) for one in pods.tolerations],
    }
    return {name: value for name, value in found.items() if value}


def _security() -> dict[str, Any]:
    return {
        "runAsNonRoot": True,
        "fsGroup": GROUP,
        # Otherwise, each start of a pod changes the group of all files of the claims.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container(manifest: Manifest, role: str | None, resources: Resources) -> dict[str, Any]:
    pods = manifest.pods
    return {
        "name": CONTAINER,
        "image": pods.image,
        "command": [*ENTRY],
        "args": [_unexpanded(word) for word in _arguments(manifest, role)],
        "env": _environment(manifest),
        "resources": _resources(resources, pods.gpu_resource),
        "volumeMounts": [
            {"name": _volume_name(number), "mountPath": one.path, **({"readOnly": True} if one.is_read_only else {})}
            for number, one in enumerate(pods.volumes)
        ],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        # The end of the log of a failed pod becomes part of its status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _arguments(manifest: Manifest, role: str | None) -> list[str]:
    known = [] if role is None else [f"--role={role}"]
    return [
        *known,
        f"--driver={manifest.driver_host}",
        f"--workers={manifest.count_of(names.WORKER)}",
        f"--leave-secs={saving_secs(manifest.pods.stop_secs)}",
        "--",
        *manifest.settings,
    ]


def _unexpanded(word: str) -> str:
    """Returns a word that Kubernetes turns into `word`: it replaces `$$` with `$`, and `$(NAME)` with a variable."""
    return word.replace("$", "$$")


def _environment(manifest: Manifest) -> list[dict[str, Any]]:
    secret = {"name": names.secret_name(manifest.name), "key": KEY_IN_SECRET}
    of_secrets: Mapping[str, dict[str, str]] = {
        VARIABLE: secret,
        **{name: {"name": one.secret, "key": one.key} for name, one in manifest.pods.secrets.items()},
    }
    return [
        {"name": names.JOB_VARIABLE, "value": manifest.name},
        {"name": names.ADDRESS_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        *({"name": name, "valueFrom": {"secretKeyRef": key}} for name, key in of_secrets.items()),
        *({"name": name, "value": _unexpanded(value)} for name, value in manifest.pods.env.items()),
    ]


def _resources(resources: Resources, gpu_resource: str) -> dict[str, Any]:
    """Returns requests and limits. Memory has a limit, so that a process that grows is ended and not its neighbours.
    CPUs have none, because a process that is throttled in a step makes all others wait."""
    gpus = {gpu_resource: str(resources.gpus)} if resources.gpus else {}
    memory = {"memory": resources.memory}
    return {"requests": {"cpu": str(resources.cpus), **memory, **gpus}, "limits": {**memory, **gpus}}


def _volume_name(number: int) -> str:
    return f"volume-{number}"


def _volume(number: int, volume: Volume) -> dict[str, Any]:
    claim: dict[str, Any] = {"claimName": volume.claim}
    if volume.is_read_only:
        claim["readOnly"] = True
    return {"name": _volume_name(number), "persistentVolumeClaim": claim}


def _toleration(one: Toleration) -> dict[str, str]:
    found = {"key": one.key, "operator": "Exists" if one.value is None else "Equal"}
    if one.value is not None:
        found["value"] = one.value
    if one.effect is not None:
        found["effect"] = one.effect
    return found
