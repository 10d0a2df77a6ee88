"""What a job consists of, in both forms."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.config.environment import FromEnvironment
from parallax_runner.config.schema import ClusterConfig
from parallax_runner.errors import LaunchError
from parallax_runner.launch.launchers.kubernetes.formats import is_job_name
from parallax_runner.launch.launchers.kubernetes.job_submission import JobSubmission, text_of
from parallax_runner.launch.launchers.kubernetes.manifest import Form, manifest_of
from parallax_runner.launch.launchers.kubernetes.names import folder_in_pods, job_name
from parallax_runner.launch.launchers.kubernetes.objects import amount_of, objects_of
from parallax_runner.launch.launchers.predicted_memory import driver_mib, process_mib
from parallax_runner.plan.plan import Plan, Shard
from parallax_runner.planning.memory import predicted_memory
from tests.kubernetes_cluster.container import expanded
from tests.single.launch.launchers.kubernetes.jobs import (
    COMMAND,
    ELASTIC,
    EVERYTHING,
    PLAN,
    RUN_DIR,
    TABLE,
    WITHOUT_SERVERS,
    config_of,
    job_specs,
    manifest,
    objects,
    templates,
)


def test_an_indexed_job_has_a_pod_for_each_process() -> None:
    job, service, policy = objects(Form.JOB)
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}, "the driver's end is the job's"
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    labels = spec["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"] == labels
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": labels}}]}]


def test_a_jobset_has_a_job_for_each_role() -> None:
    jobset, policy = objects(Form.JOBSET)
    counts = {one["name"]: one["template"]["spec"]["completions"] for one in jobset["spec"]["replicatedJobs"]}
    assert counts == {"driver": 1, "worker": 2, "server": 1}
    assert jobset["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["driver"]}
    assert policy["kind"] == "NetworkPolicy"
    (without, _) = objects(Form.JOBSET, plan=WITHOUT_SERVERS)
    assert [one["name"] for one in without["spec"]["replicatedJobs"]] == ["driver", "worker"]


@pytest.mark.parametrize(("form", "host"), [(Form.JOB, "{}-0.{}"), (Form.JOBSET, "{}-driver-0-0.{}")])
def test_all_pods_know_where_the_driver_is(form: Form, host: str) -> None:
    made = manifest(form)
    assert made.driver_host == host.format(made.name, made.name)
    for role, template in templates(objects(form)[0]).items():
        arguments = template["spec"]["containers"][0]["args"]
        assert f"--driver={made.driver_host}" in arguments and "--workers=2" in arguments
        assert "--leave-secs=105" in arguments, "a part of the 120 s between SIGTERM and SIGKILL"
        assert (f"--role={role}" in arguments) == (form is Form.JOBSET)


@pytest.mark.parametrize("value", ["a$(HOME)b", "$HOME", "$$", "$$(HOME)", "a$", "$(", "$()"])
def test_kubernetes_replaces_nothing_in_a_setting(value: str) -> None:
    (template,) = templates(objects(Form.JOB, f"+cluster.env.A='{value}'")[0]).values()
    container = template["spec"]["containers"][0]
    (given,) = [one["value"] for one in container["env"] if one["name"] == "A"]
    assert expanded(given, {"HOME": "/root"}) == value
    made = manifest(Form.JOB, command=f"{COMMAND} {shlex.quote(f'data.path={value}')}")
    (job, *_) = objects_of(made)
    (*_, word) = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert expanded(word, {"HOME": "/root"}) == f"data.path={value}"


@pytest.mark.parametrize("form", Form)
def test_a_lost_pod_is_replaced_and_a_failed_driver_ends_the_job(form: Form) -> None:
    for spec in job_specs(objects(form, "cluster.max_replacements=3")[0]):
        assert (spec["backoffLimit"], spec["podReplacementPolicy"]) == (3, "Failed")
        assert spec["template"]["spec"]["restartPolicy"] == "Never"
        disrupted, failed = spec["podFailurePolicy"]["rules"]
        assert disrupted["action"] == "Ignore" and disrupted["onPodConditions"][0]["type"] == "DisruptionTarget"
        assert failed == {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [137, 143]}}


def test_pods_request_what_the_plan_predicts() -> None:
    driver, process = driver_mib(PLAN), process_mib(PLAN)
    resources = {
        role: template["spec"]["containers"][0]["resources"]
        for role, template in templates(objects(Form.JOBSET, "cluster.threads_per_worker=3")[0]).items()
    }
    assert resources["driver"]["requests"] == {"cpu": "1", "memory": f"{driver}Mi"}
    assert resources["worker"]["requests"] == {"cpu": "3", "memory": f"{process}Mi"}
    assert resources["worker"]["limits"] == {"memory": f"{process}Mi"}


def test_pods_request_what_suffices_for_the_smallest_cluster() -> None:
    """Two servers with half of the table each; if one is lost, the other one has it all."""
    halves = dataclasses.replace(TABLE, shards=(Shard(0, 1 << 19, 0), Shard(1 << 19, 1 << 19, 1)))
    plan = dataclasses.replace(PLAN, servers=2, variables=(halves,))
    together = dataclasses.replace(TABLE, shards=(Shard(0, 1 << 19, 0), Shard(1 << 19, 1 << 19, 0)))
    smallest = dataclasses.replace(plan, servers=1, variables=(together,))
    elastic = dataclasses.replace(plan, worker_numbers=(1, 2))
    assert worker_memory(plan) == f"{process_mib(plan)}Mi"
    assert worker_memory(elastic) == f"{process_mib(smallest)}Mi" != f"{process_mib(plan)}Mi"
    of_rank = dataclasses.replace(TABLE, route="alltoall")
    shared = dataclasses.replace(WITHOUT_SERVERS, variables=(of_rank,), worker_numbers=(1, 2))
    alone = dataclasses.replace(shared, workers=1)
    assert worker_memory(shared) == f"{process_mib(alone)}Mi"


def worker_memory(plan: Plan) -> str:
    """The memory that the pod of a worker requests."""
    worker = templates(objects(Form.JOBSET, plan=plan)[0])["worker"]
    found: str = worker["spec"]["containers"][0]["resources"]["requests"]["memory"]
    return found


@pytest.mark.parametrize("form", Form)
def test_an_elastic_job_has_a_pod_for_each_worker_that_there_may_be(form: Form) -> None:
    """The index of a pod of an Indexed Job gives its role, so the pods must know the largest number."""
    made = objects(form, *ELASTIC)
    completions = [spec["completions"] for spec in job_specs(made[0])]
    assert completions == ([1, 4, 1] if form is Form.JOBSET else [6])
    for template in templates(made[0]).values():
        assert "--workers=4" in template["spec"]["containers"][0]["args"]


def test_pods_of_an_indexed_job_request_what_suffices_for_each_role() -> None:
    given = ("cluster.memory=1Gi", "cluster.gpus_per_worker=1", "cluster.threads_per_worker=3")
    plan = dataclasses.replace(PLAN, memory=predicted_memory(PLAN, exported_bytes=1 << 30))
    (template,) = templates(objects(Form.JOB, *given, plan=plan)[0]).values()
    requests = template["spec"]["containers"][0]["resources"]["requests"]
    driver = f"{driver_mib(plan)}Mi"
    assert requests == {"cpu": "3", "memory": driver, "nvidia.com/gpu": "1"}, "the driver needs most memory"


def test_a_worker_with_several_replicas_requests_their_cpus() -> None:
    plan = dataclasses.replace(PLAN, replicas_per_worker=2)
    worker = templates(objects(Form.JOBSET, "cluster.threads_per_worker=3", plan=plan)[0])["worker"]
    assert worker["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "6"


@pytest.mark.parametrize("form", Form)
def test_every_setting_reaches_every_pod(form: Form) -> None:
    made = objects(form, *EVERYTHING)
    assert {one["metadata"]["namespace"] for one in made} == {"team"}
    for role, template in templates(made[0]).items():
        spec, container = template["spec"], template["spec"]["containers"][0]
        env = {one["name"]: one.get("value") or one["valueFrom"] for one in container["env"]}
        assert env["LEVEL"] == "3"
        assert env["STORE_PASSWORD"] == {"secretKeyRef": {"name": "store", "key": "password"}}
        assert spec["serviceAccountName"] == "trainer" and spec["nodeSelector"] == {"disk": "ssd"}
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["tolerations"] == [
            {"key": "gpu", "operator": "Exists"},
            {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
            {"key": "drain", "operator": "Exists", "effect": "NoExecute"},
        ]
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (role in ("", "worker"))
        assert container["volumeMounts"][1] == {"name": "volume-1", "mountPath": "/data", "readOnly": True}
    assert made[0]["spec"]["ttlSecondsAfterFinished"] == 60
    assert "ttlSecondsAfterFinished" not in objects(form, "cluster.keep_secs=null")[0]["spec"]


@pytest.mark.parametrize("form", Form)
def test_the_job_contains_no_secret(form: Form) -> None:
    text = text_of(manifest(form, *EVERYTHING))
    assert not re.search(r"^ *(data|stringData):", text, re.MULTILINE)
    assert "needs the Secret first-run-" in text.splitlines()[0]
    assert "*id" not in text and "&id" not in text, "without aliases"
    for word in ("'a=http://me:pw@host'", "a=***"):
        with pytest.raises(LaunchError, match="a setting contains a password or token"):
            manifest(form, command=f"{COMMAND} {word}")


def test_a_variable_that_the_pods_lack_is_refused() -> None:
    found: dict[tuple[str | int, ...], Any] = {("model", "a"): FromEnvironment("${oc.env:PW}", "hunter2", ("PW",))}
    reads = dataclasses.replace(config_of(), from_environment=found)
    with pytest.raises(LaunchError, match=r"reads the environment variable PW, which the pods lack; set \+cluster.env"):
        manifest_of(reads, PLAN, RUN_DIR, COMMAND, Form.JOB)
    given = dataclasses.replace(config_of("+cluster.secrets.PW=a/b"), from_environment=found)
    text = text_of(manifest_of(given, PLAN, RUN_DIR, COMMAND, Form.JOB))
    assert "hunter2" not in text


def test_a_very_long_command_is_refused() -> None:
    with pytest.raises(LaunchError, match="the settings have more than 131072 bytes; put them into a file"):
        manifest(Form.JOB, command=f"{COMMAND} a={'b' * (1 << 17)}")


@pytest.mark.parametrize(
    ("folder", "begins"),
    [
        ("/a/First Run", "first-run-"),
        ("/a/2026-11-28", "run-2026-11-28-"),
        ("/a/Ä", "run-"),
        ("/a/" + "x" * 90, "x" * 29),
        ("/a/" + "x" * 28 + "-y", "x" * 28 + "-"),
        ("/", "run-"),
    ],
)
def test_each_folder_has_a_valid_name_of_its_own(folder: str, begins: str) -> None:
    name = job_name(ClusterConfig(), Path(folder))
    assert name.startswith(begins) and is_job_name(name), name
    assert name == job_name(ClusterConfig(), Path(folder)) != job_name(ClusterConfig(), Path("/b") / folder[1:])
    assert job_name(ClusterConfig(job_name="mine"), Path(folder)) == "mine"


def test_the_run_s_folder_is_in_the_first_writable_volume() -> None:
    cluster = ClusterConfig(volumes=("data:/data:ro", "runs:/runs/", "more:/more"), job_name="mine")
    assert folder_in_pods(cluster, RUN_DIR) == "/runs/mine"
    assert folder_in_pods(dataclasses.replace(cluster, run_folder="/more/a/"), RUN_DIR) == "/more/a"


@pytest.mark.parametrize(("quantity", "amount"), [("1", 1), ("500m", 0.5), ("1.5Gi", 1.5 * 2**30), ("2M", 2e6)])
def test_amounts(quantity: str, amount: float) -> None:
    assert amount_of(quantity) == amount


def test_scripts_and_jobs_of_sweeps_are_not_submitted(tmp_path: Path) -> None:
    config = config_of("cluster.submit=false")
    of_sweep = dataclasses.replace(config, sweep=dataclasses.replace(config.sweep, dir="multirun/1"))
    submission = JobSubmission()
    for given, command in ((config, None), (of_sweep, COMMAND)):
        with pytest.raises(LaunchError, match="a script or a job of a sweep is not submitted"):
            submission.expect_command(given, command)
    path = submission.write(config, PLAN, tmp_path, submission.expect_command(config, COMMAND))
    assert path == tmp_path / "job.yaml" and json.dumps(COMMAND.split()[-1])[1:-1] in path.read_text()
