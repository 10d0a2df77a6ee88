"""Submitting a job to an HTTP server that answers as an API server does.

Also of parallax_runner.launch.launchers.kubernetes.credentials.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.errors import LaunchError
from parallax_runner.launch.launchers.kubernetes import earlier_jobs
from parallax_runner.launch.launchers.kubernetes import submit as submitting
from parallax_runner.launch.launchers.kubernetes.api import Api
from parallax_runner.launch.launchers.kubernetes.job_submission import JobSubmission
from parallax_runner.launch.launchers.kubernetes.manifest import Form
from parallax_runner.launch.launchers.kubernetes.objects import kinds_of, secret_of
from tests.kubernetes_cluster.api_server import REVIEWS, ApiServer, Refused, wait_for
from tests.single.launch.launchers.kubernetes.jobs import COMMAND, PLAN, RUN_DIR, config_of, objects

CLAIM = {"metadata": {"name": "runs"}, "spec": {"accessModes": ["ReadWriteMany"]}}
DATA = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadOnlyMany"]}}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    for module in (submitting, earlier_jobs):
        monkeypatch.setattr(module, "POLL_SECS", 0.02)
    monkeypatch.setattr(submitting, "COLLECTED_SECS", 0.2)
    with ApiServer() as made:
        for claim in (CLAIM, DATA):
            made.put("persistentvolumeclaims", {**claim, "metadata": {**claim["metadata"]}})
        monkeypatch.setattr(
            "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION",
            str(made.write_kubeconfig(tmp_path / "kubeconfig")),
        )
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield made


def submit(tmp_path: Path, *overrides: str) -> None:
    """Checks, writes and submits the job of a run."""
    config = config_of(*overrides)
    submission = JobSubmission()
    submission.check(config, tmp_path)
    submission.hand_over(config, submission.write(config, PLAN, tmp_path, COMMAND))


def names(server: ApiServer) -> dict[str, str]:
    return {plural: name for plural, _, name in server.objects if plural != "persistentvolumeclaims"}


def test_an_indexed_job_owns_all_that_it_needs(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(tmp_path, "cluster.job_name=mine")
    assert names(server) == {
        "jobs": "mine",
        "services": "mine",
        "networkpolicies": "mine",
        "secrets": "mine-rendezvous",
    }
    job = server.get("jobs", "mine")
    assert job is not None
    for plural in ("services", "networkpolicies", "secrets"):
        (content,) = server.of(plural)
        (owner,) = content["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", "mine", job["metadata"]["uid"])
    (secret,) = server.of("secrets")
    value = base64.b64decode(secret["data"]["secret"]).decode()
    assert len(value) == 64 and value not in (tmp_path / "job.yaml").read_text()
    told = capsys.readouterr().err
    assert "submitted as Job mine; log: kubectl logs --follow --namespace=default" in told
    assert "kubectl delete job mine --namespace=default ends the job" in told
    posts = [one for one in server.requests if one.startswith("POST") and REVIEWS not in one]
    assert [("dryRun=All" in one) for one in posts] == [True] * 4 + [False] * 4
    assert "secrets" in posts[-1], "no container starts before everything else exists"


def test_a_jobset_where_it_is_installed(server: ApiServer, tmp_path: Path) -> None:
    server.has_jobsets = True
    submit(tmp_path, "cluster.job_name=mine")
    assert set(names(server)) == {"jobsets", "networkpolicies", "secrets"}
    server.remove("jobsets", "mine")
    assert names(server) == {}, "the JobSet owned the others"
    submit(tmp_path, "cluster.job_name=mine", "cluster.form=job")
    assert "jobs" in names(server)


def test_only_written(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    submit(tmp_path, "cluster.job_name=mine", "cluster.submit=false", "cluster.namespace=team")
    assert server.requests == [] and names(server) == {}
    told = capsys.readouterr().err
    assert "kubectl create secret generic mine-rendezvous --namespace=team --from-literal=secret=" in told


def test_namespace_of_the_context(server: ApiServer, tmp_path: Path) -> None:
    server.namespaces.add("team")
    server.put("persistentvolumeclaims", {"metadata": {"name": "runs"}, "spec": {}}, "team")
    server.put("persistentvolumeclaims", {"metadata": {"name": "data"}, "spec": {}}, "team")
    server.write_kubeconfig(tmp_path / "kubeconfig", namespace="team")
    submit(tmp_path)
    assert {place for plural, place, _ in server.objects if plural == "jobs"} == {"team"}


def ended(server: ApiServer, name: str, condition: str, *, plural: str = "jobs") -> None:
    job = server.get(plural, name)
    assert job is not None
    server.put(plural, {**job, "status": {"conditions": [{"type": condition, "status": "True"}]}})


@pytest.mark.parametrize("condition", ["Complete", "Failed"])
def test_submitting_again_replaces_a_job_that_has_ended(server: ApiServer, tmp_path: Path, condition: str) -> None:
    submit(tmp_path)
    (name,) = [name for plural, _, name in server.objects if plural == "jobs"]
    first = server.get("jobs", name)
    with pytest.raises(LaunchError, match=f"the Job {name} of this run has not ended in the namespace default; wait"):
        submit(tmp_path)
    ended(server, name, condition)
    submit(tmp_path)
    again = server.get("jobs", name)
    assert first is not None and again is not None
    assert again["metadata"]["uid"] != first["metadata"]["uid"] and "status" not in again
    settings = [job["spec"]["template"]["spec"]["containers"][0]["args"] for job in (first, again)]
    assert settings[0] == settings[1], "the same folder, in which the run resumes"


def test_submitting_again_in_another_form_replaces_the_job(server: ApiServer, tmp_path: Path) -> None:
    """JobSet was installed or removed since, or `cluster.form` has changed. Both jobs would have the same folder."""
    submit(tmp_path, "cluster.job_name=mine")
    server.has_jobsets = True
    with pytest.raises(LaunchError, match="the Job mine of this run has not ended in the namespace default; wait"):
        submit(tmp_path, "cluster.job_name=mine")
    ended(server, "mine", "Failed")
    submit(tmp_path, "cluster.job_name=mine")
    assert set(names(server)) == {"jobsets", "networkpolicies", "secrets"}
    ended(server, "mine", "Completed", plural="jobsets")
    submit(tmp_path, "cluster.job_name=mine", "cluster.form=job")
    assert set(names(server)) == {"jobs", "services", "networkpolicies", "secrets"}


def test_a_job_of_another_kind_and_of_somebody_else_stays(server: ApiServer, tmp_path: Path) -> None:
    server.has_jobsets = True
    server.put("jobs", {"metadata": {"name": "mine"}})
    submit(tmp_path, "cluster.job_name=mine")
    assert server.get("jobs", "mine") is not None and server.get("jobsets", "mine") is not None


def test_what_an_ended_job_owned_may_be_collected_late(server: ApiServer, tmp_path: Path) -> None:
    submit(tmp_path, "cluster.job_name=mine")
    ended(server, "mine", "Complete")
    (secret,) = server.of("secrets")
    secret["metadata"]["ownerReferences"] = []
    thread = threading.Thread(target=submit, args=(tmp_path, "cluster.job_name=mine"))
    thread.start()
    wait_for(lambda: [one for one in server.requests if one.startswith("POST") and "secrets" in one][2:])
    server.remove("secrets", "mine-rendezvous")
    thread.join()
    assert server.of("secrets")[0]["metadata"]["ownerReferences"]


def refuse(status: int, message: str, *, plural: str = "jobs", verb: str = "POST") -> Callable[..., None]:
    def refusing(asked: str, of: str, content: dict[str, Any]) -> None:
        if (asked, of) == (verb, plural):
            raise Refused(status, message)

    return refusing


def no_namespace(server: ApiServer) -> None:
    server.namespaces.clear()


def no_claim(server: ApiServer) -> None:
    server.remove("persistentvolumeclaims", "data")


def old(server: ApiServer) -> None:
    server.version = "30+"


def forbidden(server: ApiServer) -> None:
    server.refuse = refuse(403, 'jobs.batch is forbidden: User "u" cannot create resource "jobs"')


def forbidden_service(server: ApiServer) -> None:
    server.refuse = refuse(403, "services is forbidden", plural="services")


def invalid(server: ApiServer) -> None:
    server.refuse = refuse(422, "Job is invalid:\n spec.completions", plural="jobs")


def broken(server: ApiServer) -> None:
    server.refuse = refuse(500, "etcdserver: request timed out")


def another(server: ApiServer) -> None:
    server.put("jobs", {"metadata": {"name": "mine"}})


def another_service(server: ApiServer) -> None:
    server.put("services", {"metadata": {"name": "mine"}})


def without_rights(server: ApiServer) -> None:
    server.may_not_create = {"secrets"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_rights, "may not create a Secret in the namespace default; set a namespace in which they may, or ask"),
        (no_namespace, "cluster.namespace=default: this namespace does not exist"),
        (no_claim, "cluster.volumes=data: the namespace default has no claim data; create the PersistentVolumeClaim"),
        (old, "this cluster has Kubernetes 1.30, expected 1.31 or later"),
        (forbidden, 'these credentials may not create the Job mine: jobs.batch is forbidden: User "u" cannot create'),
        (forbidden_service, "these credentials may not create the Service mine: services is forbidden"),
        (invalid, "the API server refuses to create the Job mine: Job is invalid: spec.completions"),
        (broken, "the API server cannot create the Job mine: 500 etcdserver: request timed out"),
        (another, "the namespace default has another Job mine; delete it, or set another cluster.job_name"),
        (another_service, "the namespace default has another Service mine; delete it, or set another"),
    ],
)
def test_one_sentence_for_each_refusal_and_nothing_left(
    server: ApiServer, tmp_path: Path, change: Callable[[ApiServer], None], message: str
) -> None:
    change(server)
    before = dict(server.objects)
    with pytest.raises(LaunchError) as error:
        submit(tmp_path, "cluster.job_name=mine")
    assert message in str(error.value) and "\n" not in str(error.value)
    assert server.objects == before


@pytest.mark.parametrize("change", [no_namespace, no_claim, old, another, without_rights])
def test_what_the_cluster_tells_is_known_before_the_plan_is_made(
    server: ApiServer, tmp_path: Path, change: Callable[[ApiServer], None]
) -> None:
    change(server)
    with pytest.raises(LaunchError):
        JobSubmission().check(config_of("cluster.job_name=mine"), tmp_path)
    assert [one for one in server.requests if one.startswith("POST") and REVIEWS not in one] == []


@pytest.mark.parametrize("form", Form)
def test_the_kinds_whose_creation_is_asked_for_are_those_that_are_created(form: Form) -> None:
    content = [*objects(form), secret_of("a", "b")]
    assert sorted(kinds_of(form)) == sorted(one["kind"] for one in content)


def test_a_refusal_after_the_job_was_created_leaves_nothing(server: ApiServer, tmp_path: Path) -> None:
    def refusing(verb: str, plural: str, content: dict[str, Any]) -> None:
        if plural == "secrets" and content["metadata"].get("ownerReferences"):
            raise Refused(403, "no")

    server.refuse = refusing
    with pytest.raises(LaunchError, match="may not create the Secret mine-rendezvous: no"):
        submit(tmp_path, "cluster.job_name=mine")
    assert names(server) == {}


def test_credentials_that_are_not_accepted(server: ApiServer, tmp_path: Path) -> None:
    server.write_kubeconfig(tmp_path / "kubeconfig", token="another")
    with pytest.raises(LaunchError, match="does not accept the credentials of the current context; log in again"):
        submit(tmp_path)


def test_a_server_that_does_not_answer(server: ApiServer, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(path.read_text().replace(server.address, "http://127.0.0.1:9"))
    with pytest.raises(LaunchError, match=r"the API server at http://127.0.0.1:9 does not answer: .*refused"):
        submit(tmp_path)


@pytest.mark.parametrize("content", [None, "", "clusters: [", "kind: Config"])
def test_no_credentials(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    (tmp_path / "kubeconfig").unlink()
    if content is None:
        monkeypatch.delenv("KUBECONFIG")
        monkeypatch.setenv("HOME", str(tmp_path))
    else:
        (tmp_path / "kubeconfig").write_text(content)
    with pytest.raises(LaunchError, match=r"no credentials for a cluster: .*; make `kubectl get jobs` work") as error:
        submit(tmp_path)
    assert "\n" not in str(error.value)


def test_an_unknown_context(server: ApiServer, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"cluster.context=other: no credentials for a cluster: .*other"):
        submit(tmp_path, "cluster.context=other")


def test_jobset_must_be_installed(server: ApiServer, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"cluster.form=jobset: JobSet is not installed in this cluster; omit"):
        submit(tmp_path, "cluster.form=jobset")


def test_what_need_not_be_readable(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Many users may create jobs, but may not read namespaces and claims, or objects that they do not use."""
    server.has_jobsets = True

    def refusing(verb: str, plural: str, content: dict[str, Any]) -> None:
        if verb == "GET" and plural in ("namespaces", "persistentvolumeclaims", "jobsets"):
            raise Refused(403, "no")

    server.refuse = refusing
    submit(tmp_path, "cluster.form=job")
    assert "jobs" in names(server)


def test_a_claim_of_one_node_is_told(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.put("persistentvolumeclaims", {**CLAIM, "spec": {"accessModes": ["ReadWriteOnce"]}})
    submit(tmp_path)
    assert "the claim runs has the access modes ReadWriteOnce, without ReadWriteMany" in capsys.readouterr().err


def test_a_job_of_a_folder(server: ApiServer) -> None:
    assert Api.connect(config_of().cluster).version == (1, 34)
    assert JobSubmission().folder_in_job(config_of("cluster.job_name=mine"), RUN_DIR) == Path("/runs/mine")
