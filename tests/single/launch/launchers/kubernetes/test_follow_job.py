"""Following a job, as its controller and its pods go on.

Also of parallax_runner.launch.launchers.kubernetes.job_status.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.errors import LaunchError
from parallax_runner.launch.launchers.kubernetes import follow as following
from parallax_runner.launch.launchers.kubernetes.api import Api
from parallax_runner.launch.launchers.kubernetes.follow import comparable, follow
from parallax_runner.launch.launchers.kubernetes.job_submission import driver_label
from parallax_runner.launch.launchers.kubernetes.manifest import Form
from parallax_runner.launch.launchers.kubernetes.pod_template import RUN_LABEL
from tests.kubernetes_cluster.api_server import ApiServer, Refused, wait_for
from tests.single.launch.launchers.kubernetes.jobs import config_of, objects

KINDS = {Form.JOB: "jobs", Form.JOBSET: "jobsets"}


class Cluster:
    """A job and its pods. A test changes them while another thread follows."""

    def __init__(self, server: ApiServer, form: Form) -> None:
        self.server, self.form = server, form
        (self.job, *_) = objects(form, "cluster.job_name=mine")
        server.put(KINDS[form], self.job)
        self.status: list[int | BaseException] = []

    def pod(self, name: str, *, is_driver: bool = False, **status: Any) -> None:
        label, value = driver_label(self.job)
        labels = {RUN_LABEL: "mine", label: value if is_driver else "1"}
        content = {
            "metadata": {"name": name, "labels": labels, "uid": f"uid-of-{name}"},
            "spec": {"containers": [{"name": "run", "image": "a/b:1"}]},
            "status": status,
        }
        self.server.put("pods", content)

    def container(self, name: str, state: str, *, is_driver: bool = False, **more: Any) -> None:
        statuses = [
            {"name": "run", "image": "", "imageID": "", "ready": True, "restartCount": 0, "state": {state: more}}
        ]
        self.pod(name, is_driver=is_driver, containerStatuses=statuses)

    def end(self, condition: str, **more: str) -> None:
        conditions = [{"type": condition, "status": "True", **more}]
        self.server.put(KINDS[self.form], {**self.job, "status": {"conditions": conditions}})

    def follow(self) -> int:
        return follow(Api.connect(config_of().cluster), self.job, driver_label(self.job))

    def begin(self) -> threading.Thread:
        thread = threading.Thread(target=lambda: self.status.append(self.follow()))
        thread.start()
        return thread


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    monkeypatch.setattr(following, "POLL_SECS", 0.02)
    with ApiServer(has_jobsets=True) as made:
        path = made.write_kubeconfig(tmp_path / "kubeconfig")
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield made


class Shown:
    """What was printed so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self.text = capsys, ""

    def wait_for(self, words: str) -> None:
        for _ in range(500):
            self.text += self._capsys.readouterr().err
            if words in self.text:
                return
            threading.Event().wait(0.02)
        raise AssertionError(f"{words!r} is not in {self.text!r}")


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    return Shown(capsys)


@pytest.mark.parametrize("form", Form)
def test_the_log_of_the_driver_is_shown_until_the_job_has_ended(server: ApiServer, shown: Shown, form: Form) -> None:
    cluster = Cluster(server, form)
    thread = cluster.begin()
    cluster.pod("mine-0-abcde", is_driver=True, phase="Pending")
    cluster.container("mine-1-abcde", "running")
    server.log("mine-1-abcde", "of a worker")
    server.log("mine-0-abcde", "step 1", "step 2")
    cluster.container("mine-0-abcde", "running", is_driver=True)
    shown.wait_for("step 2")
    server.log("mine-0-abcde", "step 3", is_open=False)
    cluster.container("mine-0-abcde", "terminated", is_driver=True, exitCode=0)
    shown.wait_for("step 3")
    assert cluster.status == []
    cluster.end("Complete" if form is Form.JOB else "Completed")
    thread.join(10)
    shown.wait_for(f"{cluster.job['kind']} mine: finished")
    assert cluster.status == [0] and "of a worker" not in shown.text
    assert [shown.text.count(f"step {number}") for number in (1, 2, 3)] == [1, 1, 1]


@pytest.mark.parametrize(("exit_code", "status"), [(2, 2), (143, 143), (0, 1)])
def test_a_failed_job_has_the_status_of_its_driver(
    server: ApiServer, shown: Shown, exit_code: int, status: int
) -> None:
    cluster = Cluster(server, Form.JOB)
    server.log("mine-0-abcde", "the loss is not finite", is_open=False)
    cluster.container("mine-0-abcde", "terminated", is_driver=True, exitCode=exit_code)
    cluster.end("Failed", reason="PodFailurePolicy", message="Container run for pod mine-0 failed")
    assert cluster.follow() == status
    shown.wait_for("Job mine: failed: PodFailurePolicy: Container run for pod mine-0 failed")
    assert "the loss is not finite" in shown.text


def test_a_failed_job_has_the_status_of_its_last_driver(server: ApiServer, shown: Shown) -> None:
    """The names of pods are random, so that a list by name can end with the first one."""
    cluster = Cluster(server, Form.JOB)
    for name, exit_code in (("mine-0-zzzzz", 143), ("mine-0-aaaaa", 3)):
        server.log(name, f"in {name}", is_open=False)
        cluster.container(name, "terminated", is_driver=True, exitCode=exit_code)
    cluster.end("Failed", reason="PodFailurePolicy")
    assert cluster.follow() == 3
    shown.wait_for("in mine-0-aaaaa")
    assert shown.text.index("in mine-0-zzzzz") < shown.text.index("in mine-0-aaaaa")


def test_a_pod_that_has_failed_the_job_by_its_memory_is_told(server: ApiServer, shown: Shown) -> None:
    cluster = Cluster(server, Form.JOB)
    cluster.container("mine-1-abcde", "terminated", exitCode=137, reason="OOMKilled")
    cluster.end("Failed", reason="BackoffLimitExceeded")
    assert cluster.follow() == 1
    sentence = "the pod mine-1-abcde has used more memory than its limit (OOMKilled): set a larger cluster.memory\n"
    shown.wait_for("Job mine: failed")
    assert sentence in shown.text


def test_a_job_without_a_driver_fails(server: ApiServer, shown: Shown) -> None:
    cluster = Cluster(server, Form.JOB)
    cluster.end("Failed", reason="BackoffLimitExceeded")
    assert cluster.follow() == 1
    shown.wait_for("Job mine: failed: BackoffLimitExceeded\n")


def test_a_deleted_job_has_failed(server: ApiServer, shown: Shown) -> None:
    cluster = Cluster(server, Form.JOB)
    thread = cluster.begin()
    server.remove("jobs", "mine")
    thread.join(10)
    assert cluster.status == [1]
    shown.wait_for("Job mine: failed: it was deleted")


def test_the_log_of_a_driver_that_replaces_another_is_shown(server: ApiServer, shown: Shown) -> None:
    cluster = Cluster(server, Form.JOB)
    server.log("mine-0-first", "step 1", is_open=False)
    cluster.container("mine-0-first", "terminated", is_driver=True, exitCode=137)
    thread = cluster.begin()
    shown.wait_for("step 1")
    server.log("mine-0-other", "step 2", is_open=False)
    cluster.container("mine-0-other", "terminated", is_driver=True, exitCode=0)
    shown.wait_for("step 2")
    cluster.end("Complete")
    thread.join(10)
    assert cluster.status == [0] and shown.text.count("step 1") == 1


def log_requests(server: ApiServer) -> list[str]:
    return [one for one in server.requests if "/log" in one]


def test_a_stream_that_breaks_is_opened_again(server: ApiServer, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "SILENT_SECS", 0.2)
    cluster = Cluster(server, Form.JOB)
    cluster.container("mine-0-abcde", "running", is_driver=True)
    server.log("mine-0-abcde", "step 1")
    thread = cluster.begin()
    shown.wait_for("step 1")
    wait_for(lambda: len(log_requests(server)) > 2)
    first, second, *_ = log_requests(server)
    assert "sinceSeconds" not in first and "sinceSeconds=30" in second
    server.log("mine-0-abcde", "step 2", is_open=False)
    cluster.container("mine-0-abcde", "terminated", is_driver=True, exitCode=0)
    cluster.end("Complete")
    thread.join(10)
    shown.wait_for("finished")
    assert [shown.text.count(f"step {number}") for number in (1, 2)] == [1, 1]


def unschedulable(cluster: Cluster) -> None:
    message = "0/3 nodes are available: 3 Insufficient memory."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    cluster.pod("mine-1-abcde", conditions=[condition])


def waiting(reason: str, message: str | None) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.container("mine-1-abcde", "waiting", reason=reason, message=message)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (unschedulable, "the pod mine-1-abcde has no node (Unschedulable): 0/3 nodes are available: 3 Insufficient"),
        (
            waiting("ErrImagePull", "not\nfound"),
            "the pod mine-1-abcde cannot start its container a/b:1 (ErrImagePull): not found",
        ),
        (
            waiting("ImagePullBackOff", "Back-off pulling image"),
            "cannot start its container a/b:1 (ImagePullBackOff): Back-off pulling image",
        ),
        (waiting("InvalidImageName", None), "a/b:1 (InvalidImageName): no reason is known"),
        (
            waiting("CreateContainerConfigError", 'secret "store" not found'),
            'cannot start its container (CreateContainerConfigError): secret "store" not found',
        ),
    ],
)
def test_what_a_pod_waits_for_is_told_once(
    server: ApiServer, shown: Shown, change: Callable[[Cluster], None], sentence: str
) -> None:
    cluster = Cluster(server, Form.JOB)
    change(cluster)
    thread = cluster.begin()
    shown.wait_for("kubectl delete job mine ends the job")
    before = len(server.requests)
    wait_for(lambda: len(server.requests) > before + 6)
    cluster.end("Failed")
    thread.join(10)
    shown.wait_for("failed")
    assert shown.text.count(sentence) == 1


def put_event(server: ApiServer, name: str, job: str, **more: Any) -> None:
    message = f'Error creating: pods "{job}-1-{name}" is forbidden:\n exceeded quota: small'
    about = {"kind": "Job", "name": job}
    content = {"metadata": {"name": name}, "reason": "FailedCreate", "message": message, "involvedObject": about}
    server.put("events", {**content, **more})


@pytest.mark.parametrize(("form", "job"), [(Form.JOB, "mine"), (Form.JOBSET, "mine-worker-0")])
def test_pods_that_cannot_be_created_are_told_once(server: ApiServer, shown: Shown, form: Form, job: str) -> None:
    """For example because of a quota or of a missing service account: then there is no pod that could tell."""
    put_event(server, "earlier", job, message="of an earlier job with this name")
    cluster = Cluster(server, form)
    put_event(server, "another", "mine-2", message="of another job")
    put_event(server, "normal", job, reason="SuccessfulCreate", message="a pod was created")
    for name in ("abcde", "fghij"):
        put_event(server, name, job)
    thread = cluster.begin()
    shown.wait_for(f"the pods of the Job {job} cannot be created: Error creating: pods")
    before = len(server.requests)
    wait_for(lambda: len(server.requests) > before + 8)
    cluster.end("Failed")
    thread.join(10)
    shown.wait_for("failed")
    assert shown.text.count("exceeded quota: small; kubectl delete") == 1
    for other in ("of an earlier job", "of another job", "a pod was created"):
        assert other not in shown.text


def test_events_that_these_credentials_may_not_see(server: ApiServer, shown: Shown) -> None:
    def refusing(verb: str, plural: str, content: dict[str, Any]) -> None:
        if plural == "events":
            raise Refused(403, "no")

    server.refuse = refusing
    cluster = Cluster(server, Form.JOB)
    thread = cluster.begin()
    wait_for(lambda: [one for one in server.requests if "/events" in one][2:])
    cluster.end("Complete")
    thread.join(10)
    assert cluster.status == [0]


def test_a_pod_that_starts_is_no_problem(server: ApiServer, shown: Shown) -> None:
    cluster = Cluster(server, Form.JOB)
    waiting("ContainerCreating", None)(cluster)
    thread = cluster.begin()
    before = len(server.requests)
    wait_for(lambda: len(server.requests) > before + 6)
    cluster.end("Complete")
    thread.join(10)
    shown.wait_for("finished")
    assert "mine-1" not in shown.text


def test_a_server_that_refuses_ends_the_following(server: ApiServer) -> None:
    cluster = Cluster(server, Form.JOB)

    def refusing(verb: str, plural: str, content: dict[str, Any]) -> None:
        raise Refused(403, "no")

    server.refuse = refusing
    with pytest.raises(LaunchError, match="these credentials may not read the Job mine: no"):
        cluster.follow()


def away(verb: str, plural: str, content: dict[str, Any]) -> None:
    raise Refused(503, "the server is starting")


def test_a_server_that_is_away_for_a_while_is_asked_again(server: ApiServer, shown: Shown) -> None:
    cluster = Cluster(server, Form.JOB)
    back, server.refuse = server.refuse, away
    thread = cluster.begin()
    shown.wait_for("cannot read the Job mine: 503 the server is starting; the job continues, and this command tries")
    before = len(server.requests)
    wait_for(lambda: len(server.requests) > before + 3)
    server.refuse = back
    cluster.end("Complete")
    thread.join(10)
    shown.wait_for("Job mine: finished")
    assert cluster.status == [0] and shown.text.count("503") == 1


def test_a_server_that_stays_away_ends_the_following(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LOST_SECS", 0.2)
    cluster = Cluster(server, Form.JOB)
    server.refuse = away
    with pytest.raises(LaunchError, match="the API server cannot read the Job mine: 503 the server is starting"):
        cluster.follow()


def test_times_are_compared_as_times() -> None:
    moments = ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.1Z", "2026-01-01T00:00:00.12Z", "2026-01-01T00:00:01Z"]
    assert sorted(moments, key=comparable) == moments != sorted(moments)
