"""What is refused before anything starts, with one message.

Of parallax_runner.launch.launchers.kubernetes.settings_check and parallax_runner.launch.launchers.kubernetes.refusals.
"""

from __future__ import annotations

import pytest

from parallax_runner.config.compose import Composer
from parallax_runner.driver.check import validated
from parallax_runner.errors import ConfigError, LaunchError
from parallax_runner.launch.launchers.kubernetes import formats, kubernetes_launcher
from parallax_runner.launch.launchers.kubernetes.kubernetes_launcher import Kubernetes
from parallax_runner.launch.launchers.kubernetes.names import JOB_VARIABLE
from tests.free_port import pick_free_port
from tests.single.launch.launchers.kubernetes.jobs import GIVEN, PLAN, config_of

REFUSED = [
    ("cluster.image=null", "cluster.image=null (command line): expected the name of a container image"),
    ("cluster.image=A/B", "cluster.image=A/B (command line): expected the name of a container image"),
    ("'cluster.image=a b'", "expected the name of a container image"),
    ("cluster.namespace=My_Team", "cluster.namespace=My_Team (command line): expected lower-case letters"),
    ("cluster.job_name=1st", "cluster.job_name=1st (command line): expected lower-case letters"),
    (f"cluster.job_name={'x' * 41}", "at most 40 characters"),
    ("cluster.service_account=a_b", "expected the name of a service account"),
    ("cluster.memory=lots", "cluster.memory=lots (command line): expected an amount greater than 0, such as 8Gi"),
    ("cluster.memory=0Gi", "expected an amount greater than 0"),
    ("cluster.memory=8GB", "expected an amount greater than 0"),
    ("cluster.gpu_resource=a/", "expected the name of a resource"),
    ("cluster.gpus_per_worker=-1", "expected an integer, at least 0"),
    ("cluster.volumes=[runs]", "expected CLAIM:/PATH or CLAIM:/PATH:ro, with the name of a claim, but found 'runs'"),
    ("cluster.volumes=[runs:relative]", "but found 'runs:relative'"),
    ("cluster.volumes=[runs:/a:rw]", "but found 'runs:/a:rw'"),
    ("cluster.volumes=[runs:/]", "but found 'runs:/'"),
    ("cluster.volumes=[Runs:/a]", "but found 'Runs:/a'"),
    ("cluster.volumes=[runs:/a/../b]", "but found 'runs:/a/../b'"),
    ("cluster.volumes=[]", "expected at least one claim to which all pods can write"),
    ("cluster.volumes=[data:/data:ro]", "expected at least one claim to which all pods can write"),
    ("cluster.volumes=[a:/a,b:/a/]", "two claims have the folder /a"),
    ("cluster.run_folder=/elsewhere/a", "expected a folder in a writable volume (runs:/runs, data:/data:ro)"),
    ("cluster.run_folder=/data/a", "expected a folder in a writable volume"),
    ("cluster.run_folder=/runs/../a", "expected a folder in a writable volume"),
    ("cluster.image_pull_secrets=[a_b]", "expected the names of Secrets, but found 'a_b'"),
    ("cluster.tolerations=['gpu:Never']", "with an effect of NoSchedule, PreferNoSchedule, NoExecute"),
    ("+cluster.node_selector.disk='a b'", "cluster.node_selector.disk=a b (command line): expected a label"),
    ("+cluster.env.A-B=a", "expected letters, digits and underscores"),
    (
        "+cluster.env.STORE_PASSWORD=hunter2",
        "into a Secret; set +cluster.secrets.STORE_PASSWORD=SECRET/KEY",
    ),
    ("'+cluster.env.STORE=http://me:hunter2@host'", "job.yaml must not contain a password or token"),
    ("+cluster.env.PARALLAX_RENDEZVOUS_SECRET=a", "each job has a secret of its own"),
    ("+cluster.secrets.PARALLAX_RENDEZVOUS_SECRET=a/b", "each job has a secret of its own"),
    ("+cluster.env.PARALLAX_POD_ADDRESS=a", "the pods of a job have this variable already; omit this key"),
    ("+cluster.env.JOB_COMPLETION_INDEX=0", "the pods of a job have this variable already"),
    ("+cluster.secrets.A=no_slash", "expected SECRET/KEY"),
    ("cluster.image_pull_secrets=[a,b,a]", "a is there twice"),
    ("cluster.resource_info=hosts.txt", "Kubernetes chooses the node of each pod"),
    ("comm=local", "this mode runs one process, but a job has a pod for the driver and for each worker"),
    ("ckpt.dir=/tmp/ckpt", "expected a folder in run_dir or in a writable volume"),
    ("ckpt.resume=never", "a pod that is replaced continues from the newest checkpoint of its run"),
    ("comm.mpi.use_allgatherv=true", "needs MPI"),
    ("cluster.keep_secs=0", "expected an integer, at least 60, or null"),
    ("cluster.min_workers=3 cluster.max_workers=2", "3, is larger than the largest number, 2"),
    ("cluster.form=pod", "expected one of auto, jobset, job"),
    ("tracking=mlflow", "tracking.uri=sqlite:///mlflow.db"),
    ("tracking=mlflow tracking.uri=null", "the pods cannot keep the records there"),
    ("tracking=mlflow tracking.uri=sqlite:////data/a.db", "a file in a writable volume"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[given for given, _ in REFUSED])
def test_one_message_for_each_wrong_setting(given: str, message: str) -> None:
    words = [given.strip("'")] if given.startswith("'") else given.split(" ")
    if "node_selector" in given:
        words = [given]
    with pytest.raises(ConfigError) as error:
        config_of(*words)
    assert message in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        ("tracking=mlflow", "tracking.uri=http://records:5000"),
        ("tracking=mlflow", "tracking.uri=sqlite:////runs/records.db"),
        ("tracking=mlflow", "tracking.uri=null", "+cluster.secrets.MLFLOW_TRACKING_URI=a/b"),
        ("ckpt.dir=/runs/ckpt",),
        ("ckpt=off", "ckpt.resume=never"),
        ("cluster.image=registry.example:5000/a/b@sha256:" + "0" * 64,),
        ("cluster.run_folder=/runs/a/b",),
    ],
)
def test_what_the_pods_can_do_is_accepted(given: tuple[str, ...]) -> None:
    config_of(*given)


@pytest.mark.parametrize(("lacking", "key"), [(1, "cluster.image"), (2, "cluster.volumes")])
def test_image_and_volumes_are_needed(lacking: int, key: str) -> None:
    given = [word for number, word in enumerate(GIVEN) if number != lacking]
    with pytest.raises(ConfigError, match=rf"^{key}=\?\?\? .*: expected"):
        validated(Composer().job([*given, "tracking=off"]))


def test_processes_start_only_in_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(JOB_VARIABLE, raising=False)
    config = config_of()
    assert Kubernetes.submission(config) is not None
    with pytest.raises(LaunchError, match="this process is not in a pod of a job"):
        Kubernetes.from_config(config, PLAN)
    monkeypatch.setenv(JOB_VARIABLE, "a")
    assert Kubernetes.submission(config) is None
    Kubernetes.from_config(config, PLAN)


def test_names_of_objects() -> None:
    assert formats.is_object_name("a.b-c") and formats.is_label_key("example.com/a_b")
    for wrong in ("", "a..b", "-a", "a" * 254, "a_b", "A"):
        assert not formats.is_object_name(wrong)
    for wrong in ("/a", "a/", "a b", "a" * 64):
        assert not formats.is_label_key(wrong)
    assert not formats.is_label("a.b")


def test_volumes_contain_folders_and_not_their_neighbours() -> None:
    volume = formats.volume_of("runs:/runs")
    assert volume is not None
    assert volume.contains("/runs") and volume.contains("/runs/a") and not volume.contains("/runs2")


def test_pods_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JOB_VARIABLE, "a")
    monkeypatch.setenv("PARALLAX_RENDEZVOUS_SECRET", "0123456789abcdef")
    monkeypatch.setattr(kubernetes_launcher, "RENDEZVOUS", f"tcp://127.0.0.1:{pick_free_port()}")
    launcher = Kubernetes.from_config(config_of("cluster.rendezvous_timeout_secs=0.1"), PLAN)
    with pytest.raises(LaunchError) as error:
        launcher.check([], lambda: False)
    assert str(error.value) == (
        "cluster.launcher=kubernetes: missing after 0.1 s (cluster.rendezvous_timeout_secs): worker 0, worker 1, "
        "server 0; no process has registered. kubectl describe pods shows why pods do not start"
    )
    assert launcher.grace_secs == 105.0, "saving may take as long as Kubernetes lets a pod live after SIGTERM"
