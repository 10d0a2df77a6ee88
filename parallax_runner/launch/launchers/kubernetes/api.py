"""The requests to the API server, with objects as dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from parallax_runner.config.schema import ClusterConfig
from parallax_runner.launch.launchers.kubernetes.credentials import Access, find_access
from parallax_runner.launch.launchers.kubernetes.objects import JOBSET_GROUP, JOBSET_VERSION
from parallax_runner.launch.launchers.kubernetes.refusals import CONFLICT, NOT_FOUND, one_sentence, status_of

_REQUEST_SECS = 30
_JOBSETS = (JOBSET_GROUP, JOBSET_VERSION)
# What an event tells whose object could not create another one.
_FAILED_CREATE = "FailedCreate"
# The group and the plural of each kind that a submission creates.
_RESOURCES = {
    "Job": ("batch", "jobs"),
    "JobSet": (JOBSET_GROUP, "jobsets"),
    "Service": ("", "services"),
    "Secret": ("", "secrets"),
    "NetworkPolicy": ("networking.k8s.io", "networkpolicies"),
}
# The client's name of each kind, as in `create_namespaced_job`.
_NAMES = {"Job": "job", "Service": "service", "Secret": "secret", "NetworkPolicy": "network_policy"}


class Api:
    """The API server, as seen with the user's credentials in one namespace. All methods raise LaunchError with one
    sentence if the server refuses or does not answer."""

    def __init__(self, access: Access) -> None:
        from kubernetes import client

        self.access = access
        self.namespace = access.namespace
        self._core = client.CoreV1Api(access.client)
        self._apis = {
            "Job": client.BatchV1Api(access.client),
            "Service": self._core,
            "Secret": self._core,
            "NetworkPolicy": client.NetworkingV1Api(access.client),
        }
        self._custom = client.CustomObjectsApi(access.client)

    @classmethod
    def connect(cls, cluster: ClusterConfig) -> Api:
        """Returns the server of the current context. Sends nothing. Raises LaunchError without credentials."""
        return cls(find_access(cluster))

    @cached_property
    def version(self) -> tuple[int, int]:
        """The version of Kubernetes, such as (1, 34)."""
        from kubernetes import client

        with one_sentence(self.access, "read its version"):
            found = client.VersionApi(self.access.client).get_code(_request_timeout=_REQUEST_SECS)
        return int(found.major), int(found.minor.rstrip("+"))

    def has_jobsets(self) -> bool:
        """Returns whether JobSet is installed."""
        from kubernetes import client

        with one_sentence(self.access, "list the groups of its API"):
            groups = client.ApisApi(self.access.client).get_api_versions(_request_timeout=_REQUEST_SECS).groups
        versions = {one.version for group in groups if group.name == JOBSET_GROUP for one in group.versions}
        return JOBSET_VERSION in versions

    def may_create(self, kind: str) -> bool:
        """Returns whether these credentials may create objects of a kind in the namespace."""
        from kubernetes import client

        group, plural = _RESOURCES[kind]
        attributes = {"namespace": self.namespace, "verb": "create", "group": group, "resource": plural}
        review = {"spec": {"resourceAttributes": attributes}}
        with one_sentence(self.access, "ask what they may do"):
            reviews = client.AuthorizationV1Api(self.access.client)
            found = reviews.create_self_subject_access_review(review, _request_timeout=_REQUEST_SECS)
        return bool(found.status.allowed)

    def create(self, content: Mapping[str, Any], *, is_trial: bool = False) -> dict[str, Any] | None:
        """Creates an object and returns it. Returns None if there is one with its name. With `is_trial`, the server
        only checks whether it would create the object."""
        kind, name = content["kind"], content["metadata"]["name"]
        trial = {"dry_run": "All"} if is_trial else {}
        with one_sentence(self.access, f"create the {kind} {name}"):
            return self._unless(CONFLICT, "create", kind, body=content, **trial)

    def read(self, kind: str, name: str) -> dict[str, Any] | None:
        """Returns an object, or None if there is none."""
        with one_sentence(self.access, f"read the {kind} {name}"):
            return self._unless(NOT_FOUND, "get" if kind == "JobSet" else "read", kind, name=name)

    def delete(self, kind: str, name: str) -> None:
        """Deletes an object and what it owns, if it exists. The object may exist for a while longer."""
        with one_sentence(self.access, f"delete the {kind} {name}"):
            self._unless(NOT_FOUND, "delete", kind, name=name, propagation_policy="Background")

    def read_claim(self, name: str) -> dict[str, Any] | None:
        """Returns a claim, or None if there is none."""
        with one_sentence(self.access, f"read the claim {name}"):
            found: dict[str, Any] | None = self._found(
                NOT_FOUND, self._core.read_namespaced_persistent_volume_claim, name, namespace=self.namespace
            )
        return found

    def has_namespace(self) -> bool:
        """Returns whether the namespace exists."""
        with one_sentence(self.access, f"read the namespace {self.namespace}"):
            return self._found(NOT_FOUND, self._core.read_namespace, self.namespace) is not None

    def pods(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Returns the pods that have all these labels."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        with one_sentence(self.access, "list the pods"):
            found = self._core.list_namespaced_pod(
                self.namespace, label_selector=selector, _request_timeout=_REQUEST_SECS
            )
        return [self._plain(pod) for pod in found.items]

    def failed_creations(self) -> list[dict[str, Any]]:
        """Returns the events about objects of the namespace that could not create others, such as a Job its pods."""
        with one_sentence(self.access, "list the events"):
            found = self._core.list_namespaced_event(
                self.namespace, field_selector=f"reason={_FAILED_CREATE}", _request_timeout=_REQUEST_SECS
            )
        return [self._plain(event) for event in found.items]

    def open_log(self, pod: str, *, since_secs: int | None, silent_secs: float) -> Any:
        """Returns the stream of a pod's log, with the time before each line. The stream ends when the container has
        ended, and raises an error of urllib3 after `silent_secs` without a line."""
        since = {} if since_secs is None else {"since_seconds": since_secs}
        with one_sentence(self.access, f"read the log of the pod {pod}"):
            return self._found(
                NOT_FOUND,
                self._core.read_namespaced_pod_log,
                pod,
                namespace=self.namespace,
                follow=True,
                timestamps=True,
                _preload_content=False,
                _request_timeout=(_REQUEST_SECS, silent_secs),
                **since,
            )

    def _unless(self, status: int, verb: str, kind: str, **more: Any) -> dict[str, Any] | None:
        """Sends a request about an object. Returns None if the server answers with `status`."""
        if kind == "JobSet":
            group, version = _JOBSETS
            request = getattr(self._custom, f"{verb}_namespaced_custom_object")
            more = {"group": group, "version": version, "plural": "jobsets", **more}
        else:
            request = getattr(self._apis[kind], f"{verb}_namespaced_{_NAMES[kind]}")
        found: dict[str, Any] | None = self._found(status, request, namespace=self.namespace, **more)
        return found

    def _found(self, status: int, request: Any, *arguments: Any, **more: Any) -> Any:
        from kubernetes.client.exceptions import ApiException

        more.setdefault("_request_timeout", _REQUEST_SECS)
        try:
            answer = request(*arguments, **more)
        except ApiException as error:
            if status_of(error) == status:
                return None
            raise
        return answer if more.get("_preload_content") is False else self._plain(answer)

    def _plain(self, answer: Any) -> Any:
        return self.access.client.sanitize_for_serialization(answer)
