"""The names of a job and of its parts, and the place of the run's folder in the pods."""

import hashlib
import os
import re
from pathlib import Path

from parallax_runner.config.schema import ClusterConfig
from parallax_runner.launch.launchers.kubernetes.formats import Volume, volume_of

# The variable that is set in all pods of a job, with the name of the job.
JOB_VARIABLE = "PARALLAX_KUBERNETES_JOB"
ADDRESS_VARIABLE = "PARALLAX_POD_ADDRESS"
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"  # set by Kubernetes in the pods of an Indexed Job
PORT = 7070  # at which the driver of a job waits for the other pods
DRIVER, WORKER, SERVER = ROLES = ("driver", "worker", "server")
# After a checkpoint is saved, the processes of a pod need this long to end.
_END_SECS = 15
_HASH_DIGITS = 6
_MOST_OF_FOLDER = 29


def job_name(cluster: ClusterConfig, run_dir: Path) -> str:
    """Returns the name of the job of a run: `cluster.job_name`, or a name made from the run's folder. The same folder
    always has the same name, and different folders have different names."""
    if cluster.job_name is not None:
        return cluster.job_name
    folder = re.sub(r"[^a-z0-9]+", "-", run_dir.name.lower())[:_MOST_OF_FOLDER].strip("-")
    if not folder[:1].isalpha():
        folder = f"run-{folder}".strip("-")
    digits = hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:_HASH_DIGITS]
    return f"{folder}-{digits}"


def secret_name(job: str) -> str:
    """Returns the name of the Secret with the secret of the rendezvous."""
    return f"{job}-rendezvous"


def volumes_of(cluster: ClusterConfig) -> list[Volume]:
    """Returns the volumes of all pods. The texts in the configuration must be valid."""
    return [volume for volume in map(volume_of, cluster.volumes) if volume is not None]


def volume_with(cluster: ClusterConfig, folder: str) -> Volume | None:
    """Returns the innermost volume that contains a folder of the pods, or None."""
    found = [volume for volume in volumes_of(cluster) if volume.contains(folder)]
    return max(found, key=lambda volume: len(volume.path), default=None)


def folder_in_pods(cluster: ClusterConfig, run_dir: Path) -> str:
    """Returns the run's folder in the pods: `cluster.run_folder`, or a folder with the job's name in the first volume
    to which the pods can write."""
    if cluster.run_folder is not None:
        return cluster.run_folder.rstrip("/")
    writable = next(volume for volume in volumes_of(cluster) if not volume.is_read_only)
    return f"{writable.path}/{job_name(cluster, run_dir)}"


def saving_secs(stop_secs: int) -> int:
    """Returns how many of the seconds between SIGTERM and SIGKILL the run may use to save a checkpoint."""
    return max(1, stop_secs - _END_SECS)


def is_in_pod() -> bool:
    """Returns whether this process runs in a pod of a job that this package has written."""
    return JOB_VARIABLE in os.environ
