"""What the published schema of JobSet v1alpha2 says about the fields of the JobSets that this package submits.

The source is config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset, commit
01078527ec4383c3d7289b5af3e0a788324e14ec, read on 2026-11-29. It permits more fields than are here, so a new field must
be looked up there first. The templates of pods are those of Kubernetes.
"""

from __future__ import annotations

from typing import Any

import jsonschema


def _object(*required: str, **fields: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": fields, "additionalProperties": False}


def _list(items: Any, **limits: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


_TEXT, _BOOLEAN, _ANYTHING = {"type": "string"}, {"type": "boolean"}, True
_INT32 = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
_LABELS = {"type": "object", "additionalProperties": _TEXT}
_ON_POD_CONDITIONS = _list(_object("status", "type", status=_TEXT, type=_TEXT))
_ON_EXIT_CODES = _object(
    "operator", "values", containerName=_TEXT, operator=_TEXT, values=_list(_INT32, uniqueItems=True)
)
_POD_FAILURE_RULE = _object("action", action=_TEXT, onExitCodes=_ON_EXIT_CODES, onPodConditions=_ON_POD_CONDITIONS)
_JOB = _object(
    "template",
    backoffLimit=_INT32,
    completionMode=_TEXT,
    completions=_INT32,
    parallelism=_INT32,
    podFailurePolicy=_object("rules", rules=_list(_POD_FAILURE_RULE)),
    podReplacementPolicy=_TEXT,
    template=_object(metadata=_object(labels=_LABELS), spec=_ANYTHING),
)
_SPEC = _object(
    network=_object(enableDNSHostnames=_BOOLEAN, publishNotReadyAddresses=_BOOLEAN, subdomain=_TEXT),
    successPolicy=_object("operator", operator={"enum": ["All", "Any"]}, targetReplicatedJobs=_list(_TEXT)),
    failurePolicy=_object(maxRestarts=_INT32),
    ttlSecondsAfterFinished={**_INT32, "minimum": 0},
    replicatedJobs=_list(_object("name", "template", name=_TEXT, replicas=_INT32, template=_object(spec=_JOB))),
)
_JOBSET = _object(apiVersion=_TEXT, kind=_TEXT, metadata={"type": "object"}, spec=_SPEC)


def expect_published(jobset: dict[str, Any]) -> None:
    """Raises ValidationError if the published schema does not permit a JobSet, or is not known to permit it."""
    jsonschema.validate(jobset, _JOBSET)
    names = [one["name"] for one in jobset["spec"]["replicatedJobs"]]
    if len(names) != len(set(names)):
        raise jsonschema.ValidationError(f"the names of replicated jobs are not unique: {names}")
