"""Checks the settings of `cluster=kubernetes`: all that can be known without the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

from parallax_runner.config import trackers
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import ClusterConfig, RunConfig
from parallax_runner.config.tracking_uri import TRACKING_URI
from parallax_runner.errors import ConfigError, Setting
from parallax_runner.files.credentials import MASK, is_secret_variable, without_password
from parallax_runner.launch.launchers.kubernetes import formats
from parallax_runner.launch.launchers.kubernetes.names import (
    ADDRESS_VARIABLE,
    INDEX_VARIABLE,
    JOB_VARIABLE,
    volume_with,
    volumes_of,
)
from parallax_runner.launch.launchers.manual.secret import VARIABLE

# What precedes the path in the URI of a tracker's store, if the store is a file or a folder.
_BEFORE_PATH = ("sqlite:///", "file://")
# The variables that a job sets in its pods, and why no setting can.
_OWN_VARIABLES = {
    VARIABLE: "each job has a secret of its own",
    **dict.fromkeys((JOB_VARIABLE, ADDRESS_VARIABLE, INDEX_VARIABLE), "the pods of a job have this variable already"),
}
# Each key: whether a value is valid, and what was expected.
_TEXTS: tuple[tuple[str, Callable[[str], object], str], ...] = (
    ("image", formats.IMAGE.fullmatch, "expected the name of a container image, such as registry.example/team/image:1"),
    ("namespace", formats.is_label, "expected lower-case letters, digits and hyphens, at most 63 characters"),
    (
        "job_name",
        formats.is_job_name,
        f"expected lower-case letters, digits and hyphens, first a letter, at most {formats.MOST_OF_JOB_NAME} "
        "characters, because the names of pods are longer",
    ),
    ("service_account", formats.is_object_name, "expected the name of a service account"),
    ("memory", formats.is_quantity, "expected an amount greater than 0, such as 8Gi or 500M"),
    ("gpu_resource", formats.is_label_key, "expected the name of a resource, such as nvidia.com/gpu"),
)
_LISTS: tuple[tuple[str, Callable[[str], object], str], ...] = (
    ("volumes", formats.volume_of, "expected CLAIM:/PATH or CLAIM:/PATH:ro, with the name of a claim"),
    ("image_pull_secrets", formats.is_object_name, "expected the names of Secrets"),
    (
        "tolerations",
        formats.toleration_of,
        f"expected KEY, KEY=VALUE, KEY:EFFECT or KEY=VALUE:EFFECT, with an effect of {', '.join(formats.EFFECTS)}",
    ),
)


def check_settings(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for the first setting that the API server would refuse, or with which the pods could not
    work."""
    _check_processes(config, origins)
    _check_texts(config.cluster, origins)
    _check_lists(config.cluster, origins)
    _check_mappings(config.cluster, origins)
    _check_volumes(config.cluster, origins)
    _check_run_folder(config.cluster, origins)
    _check_checkpoints(config, origins)
    _check_tracking(config, origins)


def _check_processes(config: RunConfig, origins: Origins) -> None:
    if config.cluster.resource_info is not None:
        needed = "Kubernetes chooses the node of each pod; omit this key"
        raise refusal("cluster.resource_info", origins, needed, value=config.cluster.resource_info)
    if mode_of(config.comm).is_one_process:
        needed = "this mode runs one process, but a job has a pod for the driver and for each worker"
        raise refusal("comm.name", origins, needed, value=config.comm.name)


def _check_texts(cluster: ClusterConfig, origins: Origins) -> None:
    for name, is_valid, expected in _TEXTS:
        value = getattr(cluster, name)
        is_missing = name == "image" and value is None
        if is_missing or (value is not None and not is_valid(value)):
            raise refusal(f"cluster.{name}", origins, expected, value=value)


def _check_lists(cluster: ClusterConfig, origins: Origins) -> None:
    for name, is_valid, expected in _LISTS:
        values = getattr(cluster, name)
        wrong = next((one for one in values if not is_valid(one)), None)
        if wrong is not None:
            raise refusal(f"cluster.{name}", origins, f"{expected}, but found {wrong!r}", value=values)
    for name in _repeated(cluster.image_pull_secrets):  # JobSet refuses them
        raise refusal("cluster.image_pull_secrets", origins, f"{name} is there twice", value=cluster.image_pull_secrets)


def _check_mappings(cluster: ClusterConfig, origins: Origins) -> None:
    for name, value in cluster.node_selector.items():
        if not formats.is_label_key(name) or not formats.is_label_value(value):
            raise refusal(f"cluster.node_selector.{name}", origins, "expected a label and its value", value=value)
    for group in ("env", "secrets"):
        for name, value in getattr(cluster, group).items():
            _check_variable(f"cluster.{group}.{name}", name, value, origins)
    for name, value in cluster.secrets.items():
        if formats.secret_key_of(value) is None:
            expected = "expected SECRET/KEY, the name of a Secret and one of its keys"
            raise refusal(f"cluster.secrets.{name}", origins, expected, value=value)
    _check_env(cluster, origins)


def _check_variable(key: str, name: str, value: str, origins: Origins) -> None:
    """Raises ConfigError for a variable that cannot be set in the pods, or that a job sets itself."""
    if formats.VARIABLE.fullmatch(name) is None:
        expected = "expected letters, digits and underscores as the name of a variable"
        raise refusal(key, origins, expected, value=value)
    if name in _OWN_VARIABLES:
        raise ConfigError(f"{_OWN_VARIABLES[name]}; omit this key").about(Setting(key, MASK))


def _check_env(cluster: ClusterConfig, origins: Origins) -> None:
    """Raises ConfigError for a value that job.yaml must not contain, and for a variable that is set twice."""
    for name, value in cluster.env.items():
        key = f"cluster.env.{name}"
        if name in cluster.secrets:
            raise refusal(key, origins, f"cluster.secrets.{name} already sets this variable", value=value)
        if is_secret_variable(name) or without_password(value) != value:
            # The message of `refusal` would show the value.
            raise ConfigError("job.yaml must not contain a password or token; put the value into a Secret").about(
                Setting(key, MASK), remedy=f"set +cluster.secrets.{name}=SECRET/KEY"
            )


def _check_volumes(cluster: ClusterConfig, origins: Origins) -> None:
    volumes = volumes_of(cluster)
    if all(volume.is_read_only for volume in volumes):
        expected = "expected at least one claim to which all pods can write, such as [runs:/runs], for the run's folder"
        raise refusal("cluster.volumes", origins, expected, value=cluster.volumes)
    for path in _repeated(volume.path for volume in volumes):
        raise refusal("cluster.volumes", origins, f"two claims have the folder {path}", value=cluster.volumes)


def _repeated(values: Iterable[str]) -> list[str]:
    return [value for value, count in Counter(values).items() if count > 1]


def _check_run_folder(cluster: ClusterConfig, origins: Origins) -> None:
    folder = cluster.run_folder
    if folder is not None and not _is_writable(cluster, folder):
        expected = f"expected a folder in a writable volume ({', '.join(cluster.volumes)})"
        raise refusal("cluster.run_folder", origins, expected, value=folder)


def _check_checkpoints(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if a replaced pod could not find its run's checkpoints, or would not continue from them."""
    folder = config.ckpt.dir
    if not config.ckpt.enabled or folder is None:
        return
    is_in_run = PurePosixPath(config.run_dir) in PurePosixPath(folder).parents
    if not is_in_run and not _is_writable(config.cluster, folder):
        expected = f"expected a folder in run_dir or in a writable volume ({', '.join(config.cluster.volumes)})"
        raise refusal("ckpt.dir", origins, expected, value=folder)
    if config.ckpt.resume != "auto":
        needed = "a pod that is replaced continues from the newest checkpoint of its run; omit this key"
        raise refusal("ckpt.resume", origins, needed, value=config.ckpt.resume, hint="ckpt.warm_start")


def _is_writable(cluster: ClusterConfig, folder: str) -> bool:
    path = PurePosixPath(folder)
    volume = volume_with(cluster, folder.rstrip("/"))
    return path.is_absolute() and ".." not in path.parts and volume is not None and not volume.is_read_only


def _check_tracking(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if the records would be lost with the driver's pod."""
    tracking = config.tracking
    if not tracking.enabled or not trackers.declared_by(tracking.tracker).stores_in_database:
        return
    given = {**config.cluster.env, **config.cluster.secrets}
    if tracking.uri is None and TRACKING_URI in given:
        return
    local = None if tracking.uri is None else _local_path(tracking.uri)
    if tracking.uri is None or (local is not None and not _is_writable(config.cluster, local)):
        needed = (
            "the pods cannot keep the records there; expected the address of a server, or a file in a writable volume, "
            "such as sqlite:////runs/records.db"
        )
        raise refusal("tracking.uri", origins, needed, value=tracking.uri, hint="tracking=off")


def _local_path(uri: str) -> str | None:
    """Returns the path of a store that is a file or a folder, or None for a server."""
    if "://" not in uri:
        return uri.removeprefix("file:")
    found = next((uri.removeprefix(prefix) for prefix in _BEFORE_PATH if uri.startswith(prefix)), None)
    return None if found is None else found.partition("?")[0]
