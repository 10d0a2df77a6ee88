"""Finds the API server, the credentials and the namespace as kubectl does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallax_runner.config.schema import ClusterConfig
from parallax_runner.errors import LaunchError, Setting

_FILES = "KUBECONFIG"
_DEFAULT_FILE = Path("~/.kube/config")
_NAMESPACE_OF_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True)
class Access:
    """A client of the API server, and the namespace of the job. `client` is an ApiClient."""

    client: Any
    namespace: str

    @property
    def server(self) -> str:
        """The address of the API server."""
        return str(self.client.configuration.host)


def find_access(cluster: ClusterConfig) -> Access:
    """Returns the access of the current context, or of `cluster.context`. Without a kubeconfig file, returns that of
    the pod in which this process runs. Raises LaunchError if there is none."""
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise LaunchError("submitting needs the package kubernetes").about(
            Setting("cluster", "kubernetes"),
            remedy="pip install 'parallax-runner[kubernetes]', or cluster.submit=false",
        ) from error
    configuration = client.Configuration()
    try:
        if _has_file():
            config.load_kube_config(context=cluster.context, client_configuration=configuration)
            namespace = _namespace_of_context(cluster.context)
        else:
            config.load_incluster_config(client_configuration=configuration)
            namespace = _NAMESPACE_OF_POD.read_text(encoding="utf-8").strip()
    except Exception as error:  # the client raises anything for a file that is not a kubeconfig
        raise LaunchError(f"no credentials for a cluster: {_first_line(error)}").about(
            Setting.of("cluster.context", cluster.context),
            remedy="make `kubectl get jobs` work on this machine, or set cluster.submit=false",
        ) from error
    return Access(client.ApiClient(configuration), cluster.namespace or namespace or _DEFAULT_NAMESPACE)


def _has_file() -> bool:
    return bool(os.environ.get(_FILES)) or _DEFAULT_FILE.expanduser().exists()


def _namespace_of_context(name: str | None) -> str | None:
    from kubernetes import config

    contexts, current = config.list_kube_config_contexts()
    found = current if name is None else next(one for one in contexts if one["name"] == name)
    namespace = found["context"].get("namespace")
    return None if namespace is None else str(namespace)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
