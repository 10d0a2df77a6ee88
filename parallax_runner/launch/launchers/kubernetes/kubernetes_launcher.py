"""The `kubernetes` launcher: in the driver's pod, the workers and servers are the other pods of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.worker_numbers import ClusterSize, is_elastic
from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch.launchers.kubernetes import settings_check
from parallax_runner.launch.launchers.kubernetes.job_submission import JobSubmission
from parallax_runner.launch.launchers.kubernetes.names import PORT, is_in_pod, saving_secs
from parallax_runner.launch.launchers.manual.manual_launcher import KEYS_OF_SIZES, Manual
from parallax_runner.launch.launchers.membership import Membership
from parallax_runner.launch.launchers.submission import Submission
from parallax_runner.plan.plan import Plan

# The driver's pod listens on all its addresses. A NetworkPolicy lets only pods of the job connect.
RENDEZVOUS = f"tcp://0.0.0.0:{PORT}"


class Kubernetes(Manual):
    """Outside of a job, writes and submits the job. In the driver's pod, claims the processes that stand by in the
    other pods. Kubernetes replaces a lost pod, and the driver waits for the new one."""

    own_keys = (
        *("image", "form", "context", "namespace", "job_name", "submit", "follow", "volumes", "run_folder", "env"),
        *("secrets", "service_account", "image_pull_secrets", "node_selector", "tolerations", "memory"),
        *("gpus_per_worker", "gpu_resource", "max_replacements", "stop_secs", "keep_secs"),
        *("rendezvous_timeout_secs", *KEYS_OF_SIZES),
    )
    keys_are_for = "Kubernetes jobs"

    @classmethod
    def check_config(cls, config: RunConfig, origins: Origins) -> None:
        """Raises ConfigError for settings that the API server would refuse, or with which the pods could not work."""
        settings_check.check_settings(config, origins)

    @classmethod
    def submission(cls, config: RunConfig) -> Submission | None:
        """Returns the submission to the API server, or None in a pod."""
        return None if is_in_pod() else JobSubmission()

    @classmethod
    def from_config(cls, config: RunConfig, plan: Plan) -> Self:
        """Returns the launcher without waiting for the other pods. Raises LaunchError outside of a pod."""
        if not is_in_pod():
            raise LaunchError("this process is not in a pod of a job, and only there can processes start").about(
                Setting("cluster.launcher", "kubernetes"),
                remedy="omit comm.measure_rows and searches, or do them with cluster=local",
            )
        wait_secs = config.cluster.rendezvous_timeout_secs
        made = cls(
            RENDEZVOUS,
            wait_secs,
            config.run_dir,
            plan.workers,
            plan.servers,
            replace_secs=wait_secs,
            is_elastic=is_elastic(config),
        )
        made.grace_secs = saving_secs(config.cluster.stop_secs)
        return made

    @classmethod
    def membership(cls, config: RunConfig, plan: Plan) -> Membership:
        """Returns the other pods of the job."""
        return _Pods(cls._claimed_by(RENDEZVOUS, config, plan))

    def check(self, folders: Sequence[Path], stopped: Callable[[], bool]) -> None:
        """Waits until all other pods have registered. After the timeout, raises LaunchError, which names the missing
        ones."""
        with _told_of_pods():
            super().check(folders, stopped)


class _Pods(Membership):
    """The other pods of the job. An error about missing ones names the command that shows why."""

    def __init__(self, claimed: Membership) -> None:
        self._claimed = claimed

    def available(self, wait_secs: float, stopped: Callable[[], bool]) -> ClusterSize:
        """Waits for the pods as for other processes."""
        with _told_of_pods():
            return self._claimed.available(wait_secs, stopped)

    def has_more(self, running: ClusterSize) -> bool:
        """Returns whether there are more pods."""
        return self._claimed.has_more(running)


@contextmanager
def _told_of_pods() -> Iterator[None]:
    try:
        yield
    except LaunchError as error:
        raise error.about(
            Setting("cluster.launcher", "kubernetes"), remedy="kubectl describe pods shows why pods do not start"
        ) from None
