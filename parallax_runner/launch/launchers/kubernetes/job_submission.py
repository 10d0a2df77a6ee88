"""Writes the job of a run to `job.yaml`, submits it and follows it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from parallax_runner.config.schema import ClusterConfig, RunConfig
from parallax_runner.errors import LaunchError, Setting
from parallax_runner.files.plain import read_text
from parallax_runner.files.whole import write_whole
from parallax_runner.launch.launchers.kubernetes import names
from parallax_runner.launch.launchers.kubernetes.api import Api
from parallax_runner.launch.launchers.kubernetes.earlier_jobs import ended_jobs
from parallax_runner.launch.launchers.kubernetes.follow import follow
from parallax_runner.launch.launchers.kubernetes.manifest import Form, Manifest, manifest_of
from parallax_runner.launch.launchers.kubernetes.objects import objects_of
from parallax_runner.launch.launchers.kubernetes.pod_template import KEY_IN_SECRET, RUN_LABEL
from parallax_runner.launch.launchers.kubernetes.submit import check_cluster, check_permissions, submit
from parallax_runner.launch.launchers.submission import Submission
from parallax_runner.plan.plan import Plan

FILE = "job.yaml"
AUTO = "auto"


class JobSubmission(Submission):
    """Submits the run to the API server."""

    remedy_for_scripts = "submit each run with its own command"

    def folder_in_job(self, config: RunConfig, run_dir: Path) -> Path:
        """Returns the run's folder in the pods."""
        return Path(names.folder_in_pods(config.cluster, run_dir))

    def check(self, config: RunConfig, run_dir: Path) -> None:
        """Asks the server, unless the job is only written. Raises LaunchError if the cluster lacks what the job needs,
        if these credentials may not create it, or if a job of the run has not ended."""
        cluster = config.cluster
        if not cluster.submit:
            return
        api = Api.connect(cluster)
        check_cluster(api, {one.claim: not one.is_read_only for one in names.volumes_of(cluster)})
        form = _form_in(api, cluster)
        check_permissions(api, form)
        ended_jobs(api, form, names.job_name(cluster, run_dir))

    def write(self, config: RunConfig, plan: Plan, run_dir: Path, command: str) -> Path:
        """Writes `job.yaml`."""
        manifest = manifest_of(config, plan, run_dir, command, _form(config.cluster))
        path = run_dir / FILE
        write_whole(path, text_of(manifest))
        return path

    def hand_over(self, config: RunConfig, path: Path) -> None:
        """Submits the job if `cluster.submit` is set, and follows it if `cluster.follow` is set."""
        objects = list(yaml.safe_load_all(read_text(path)))
        name = objects[0]["metadata"]["name"]
        if not config.cluster.submit:
            _tell_written(path, name, config.cluster)
            return
        api = Api.connect(config.cluster)
        submit(api, Form.of(objects[0]), objects)
        _tell_submitted(objects[0], api.namespace)
        if config.cluster.follow and (status := follow(api, objects[0], driver_label(objects[0]))):
            raise SystemExit(status)


def _form(cluster: ClusterConfig) -> Form:
    """Returns the form of the job. For a job that is only written, the server is not asked."""
    if cluster.submit:
        return _form_in(Api.connect(cluster), cluster)
    return Form.JOB if cluster.form == AUTO else Form(cluster.form)


def _form_in(api: Api, cluster: ClusterConfig) -> Form:
    """Returns the form of a job that is submitted. Raises LaunchError if the cluster does not have it."""
    has_jobsets = api.has_jobsets()
    if cluster.form == AUTO:
        return Form.JOBSET if has_jobsets else Form.JOB
    if cluster.form == Form.JOBSET and not has_jobsets:
        raise LaunchError("JobSet is not installed in this cluster").about(
            Setting("cluster.form", cluster.form), remedy="omit cluster.form"
        )
    return Form(cluster.form)


def text_of(manifest: Manifest) -> str:
    """Returns the text of `job.yaml`."""
    head = f"# The job of one run, for kubectl apply. It needs the Secret {names.secret_name(manifest.name)}.\n"
    return head + "---\n".join(_documents(manifest))


def _documents(manifest: Manifest) -> Iterator[str]:
    for content in objects_of(manifest):
        # YAML would have an anchor and an alias for an object that occurs twice.
        copied = json.loads(json.dumps(content))
        yield yaml.safe_dump(copied, sort_keys=False, width=120)


def driver_label(job: dict[str, Any]) -> tuple[str, str]:
    """Returns the label of the driver's pod in a job, and its value."""
    if job["kind"] == "JobSet":
        return "jobset.sigs.k8s.io/replicatedjob-name", names.DRIVER
    return "batch.kubernetes.io/job-completion-index", "0"


def _tell_submitted(job: dict[str, Any], namespace: str) -> None:
    kind, name, where = job["kind"], job["metadata"]["name"], f"--namespace={namespace}"
    selector = ",".join("=".join(label) for label in ((RUN_LABEL, name), driver_label(job)))
    _tell(
        f"submitted as {kind} {name}; log: kubectl logs --follow {where} --selector={selector}; "
        f"kubectl delete {kind.lower()} {name} {where} ends the job"
    )


def _tell_written(path: Path, name: str, cluster: ClusterConfig) -> None:
    namespace = [] if cluster.namespace is None else [f"--namespace={cluster.namespace}"]
    secret = ["kubectl", "create", "secret", "generic", names.secret_name(name), *namespace]
    random = f'--from-literal={KEY_IN_SECRET}="$(openssl rand -hex 32)"'
    apply = ["kubectl", "apply", *namespace, "--filename", str(path)]
    _tell(f"written but not submitted: {path}; to submit it: {shlex.join(secret)} {random} && {shlex.join(apply)}")


def _tell(note: str) -> None:
    print(f"parallax_runner: {note}", file=sys.stderr)
