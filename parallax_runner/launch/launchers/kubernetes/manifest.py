"""What a job on Kubernetes consists of, made from the plan and the configuration."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from parallax_runner.config.frozen import needed_variables
from parallax_runner.config.schema import ClusterConfig, RunConfig
from parallax_runner.config.worker_numbers import most_workers
from parallax_runner.errors import LaunchError, Setting
from parallax_runner.files.credentials import without_password
from parallax_runner.launch.launchers.kubernetes import names
from parallax_runner.launch.launchers.kubernetes.formats import SecretKey, Toleration, Volume, secret_key_of
from parallax_runner.launch.launchers.kubernetes.formats import toleration_of as read_toleration
from parallax_runner.launch.launchers.kubernetes.names import DRIVER, SERVER, WORKER
from parallax_runner.launch.launchers.predicted_memory import driver_mib, for_smallest_size, process_mib
from parallax_runner.plan.plan import Plan

# A command line of a container cannot be longer.
MOST_COMMAND_BYTES = 128 << 10
_COMMAND = ("python", "-m", "parallax_runner")


class Form(StrEnum):
    """The kind of a job: a JobSet, or an Indexed Job with a headless Service."""

    JOBSET = "jobset"
    JOB = "job"

    @property
    def kind(self) -> str:
        """The kind of the object, as the API server calls it."""
        return "JobSet" if self is Form.JOBSET else "Job"

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> Form:
        """Returns the form of a job that the API server reads."""
        return next(form for form in cls if form.kind == job["kind"])


@dataclass(frozen=True)
class Resources:
    """What a pod requests. `cpus` is a number, `memory` a quantity such as `8Gi`."""

    cpus: int
    memory: str
    gpus: int = 0


@dataclass(frozen=True)
class Group:
    """The pods with one role."""

    role: str
    count: int
    resources: Resources


@dataclass(frozen=True)
class Pods:
    """What all pods of the job have. `secrets` are the variables whose values are in Secrets."""

    image: str
    env: Mapping[str, str]
    secrets: Mapping[str, SecretKey]
    volumes: tuple[Volume, ...]
    tolerations: tuple[Toleration, ...]
    node_selector: Mapping[str, str]
    image_pull_secrets: tuple[str, ...]
    service_account: str | None
    gpu_resource: str
    stop_secs: int


@dataclass(frozen=True)
class Manifest:
    """One job. `groups` are its pods: the driver, the workers and the servers. `settings` are the words after
    `python -m parallax_runner` in the driver's pod, and `run_folder` is the run's folder there."""

    name: str
    form: Form
    namespace: str | None
    groups: tuple[Group, ...]
    pods: Pods
    settings: tuple[str, ...]
    run_folder: str
    max_replacements: int
    keep_secs: int | None

    def count_of(self, role: str) -> int:
        """Returns the number of pods with a role."""
        return sum(group.count for group in self.groups if group.role == role)

    @property
    def driver_host(self) -> str:
        """The name at which the other pods find the driver's pod."""
        host = f"{self.name}-{DRIVER}-0-0" if self.form is Form.JOBSET else f"{self.name}-0"
        return f"{host}.{self.name}"


def manifest_of(config: RunConfig, plan: Plan, run_dir: Path, command: str, form: Form) -> Manifest:
    """Returns the job of a run. `command` is the command of its driver.

    Raises LaunchError if the command contains a password or reads a variable that the pods lack.
    """
    cluster = config.cluster
    _check_variables(config)
    return Manifest(
        name=names.job_name(cluster, run_dir),
        form=form,
        namespace=cluster.namespace,
        groups=_groups(cluster, plan),
        pods=_pods(cluster),
        settings=_settings_in(command),
        run_folder=names.folder_in_pods(cluster, run_dir),
        max_replacements=cluster.max_replacements,
        keep_secs=cluster.keep_secs,
    )


def _groups(cluster: ClusterConfig, plan: Plan) -> tuple[Group, ...]:
    """Returns the pods of each role, without roles that have none."""
    memory = cluster.memory or f"{process_mib(for_smallest_size(plan, servers=1))}Mi"
    cpus = cluster.threads_per_worker
    of_worker = Resources(cpus * plan.replicas_per_worker, memory, cluster.gpus_per_worker)
    found = (
        Group(DRIVER, 1, Resources(1, f"{driver_mib(plan)}Mi")),
        Group(WORKER, most_workers(cluster), of_worker),
        Group(SERVER, plan.servers, Resources(cpus, memory)),
    )
    return tuple(group for group in found if group.count)


def _pods(cluster: ClusterConfig) -> Pods:
    secrets = {name: secret_key_of(value) for name, value in cluster.secrets.items()}
    return Pods(
        image=str(cluster.image),
        env=dict(cluster.env),
        secrets={name: key for name, key in secrets.items() if key is not None},
        volumes=tuple(names.volumes_of(cluster)),
        tolerations=tuple(one for one in map(read_toleration, cluster.tolerations) if one is not None),
        node_selector=dict(cluster.node_selector),
        image_pull_secrets=tuple(cluster.image_pull_secrets),
        service_account=cluster.service_account,
        gpu_resource=cluster.gpu_resource,
        stop_secs=cluster.stop_secs,
    )


def _settings_in(command: str) -> tuple[str, ...]:
    """Returns the settings in a command. Raises LaunchError if job.yaml cannot contain them."""
    words = shlex.split(command)
    assert tuple(words[:3]) == _COMMAND, command
    if without_password(command) != command or "***" in command:
        raise LaunchError("a setting contains a password or token, which job.yaml must not contain").about(
            Setting("cluster.launcher", "kubernetes"),
            remedy="read the value from an environment variable, ${oc.env:NAME}, and set +cluster.secrets.NAME",
        )
    if len(command.encode()) > MOST_COMMAND_BYTES:
        raise LaunchError(f"the settings have more than {MOST_COMMAND_BYTES} bytes").about(
            Setting("cluster.launcher", "kubernetes"), remedy="put them into a file of the image (--config-dir)"
        )
    return tuple(words[3:])


def _check_variables(config: RunConfig) -> None:
    """Raises LaunchError if the configuration reads a variable that the pods lack."""
    given = {**config.cluster.env, **config.cluster.secrets}
    lacking = next((name for name in needed_variables(config) if name not in given), None)
    if lacking is not None:
        raise LaunchError(f"the configuration reads the environment variable {lacking}, which the pods lack").about(
            Setting("cluster.launcher", "kubernetes"),
            remedy=f"set +cluster.env.{lacking}=VALUE or +cluster.secrets.{lacking}=SECRET/KEY",
        )
