"""Jobs for the tests of this folder."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from parallax_runner.config.compose import Composer
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.check import validated
from parallax_runner.launch.launchers.kubernetes.manifest import Form, Manifest, manifest_of
from parallax_runner.launch.launchers.kubernetes.objects import objects_of
from parallax_runner.plan.plan import Plan, VariablePlan

GIVEN = (
    "cluster=kubernetes",
    "cluster.image=registry.example/team/run:1",
    "cluster.volumes=[runs:/runs,data:/data:ro]",
)
WITHOUT_RECORDS = "tracking=off"
TABLE = VariablePlan("table", (1 << 20, 256), "float32", 2**30, "sparse", "ps", (), ("accumulator",), None, "")
PLAN = Plan("hybrid", workers=2, servers=1, fingerprint="", variables=(TABLE,), notes=())
RUN_DIR = Path("/home/me/runs/First Run")
COMMAND = "python -m parallax_runner cluster=kubernetes 'data.path=a $(b) c' hydra.run.dir=/runs/first"


@functools.cache
def config_of(*overrides: str) -> RunConfig:
    """A checked configuration of a run on Kubernetes."""
    return validated(Composer().job([*GIVEN, WITHOUT_RECORDS, *overrides]))


def manifest(form: Form, *overrides: str, plan: Plan = PLAN, command: str = COMMAND) -> Manifest:
    """The job of a run."""
    return manifest_of(config_of(*overrides), plan, RUN_DIR, command, form)


def objects(form: Form, *overrides: str, plan: Plan = PLAN) -> list[dict[str, Any]]:
    """The objects of the job of a run."""
    return objects_of(manifest(form, *overrides, plan=plan))


def templates(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The templates of the pods of a job by role, or «» for all roles."""
    if job["kind"] == "Job":
        return {"": job["spec"]["template"]}
    return {one["name"]: one["template"]["spec"]["template"] for one in job["spec"]["replicatedJobs"]}


def job_specs(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The specifications of all Jobs."""
    if job["kind"] == "Job":
        return [job["spec"]]
    return [one["template"]["spec"] for one in job["spec"]["replicatedJobs"]]


WITHOUT_SERVERS = dataclasses.replace(PLAN, comm="sharded", servers=0)
# Every setting that reaches the objects.
EVERYTHING = (
    "cluster.namespace=team",
    "+cluster.env.LEVEL=3",
    "+cluster.secrets.STORE_PASSWORD=store/password",
    "cluster.service_account=trainer",
    "cluster.image_pull_secrets=[registry]",
    "+cluster.node_selector.disk=ssd",
    "cluster.tolerations=[gpu,'spot=yes:NoSchedule',drain:NoExecute]",
    "cluster.memory=8Gi",
    "cluster.gpus_per_worker=2",
    "cluster.threads_per_worker=4",
    "cluster.keep_secs=60",
)
# A run of 1 to 4 workers that begins with 2.
ELASTIC = ("cluster.workers=2", "cluster.min_workers=1", "cluster.max_workers=4", "train.max_restarts=3")
