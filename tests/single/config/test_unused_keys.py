"""Keys that the chosen mode has no use for: accepted, as a sweep over modes needs it, and named in one line."""

from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser

from parallax_runner.config.compose import Composer
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.unused_keys import KEPT, RULES, without_unused
from parallax_runner.driver.check import check, validated


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def notes(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    check(get_args_parser().parse_args(list(arguments)))
    return capsys.readouterr().err.splitlines()


SERVERS = "cluster.servers=2 (command line): this key has no effect, because comm=mpi has no servers."
WORKERS = "cluster.workers=4 (command line): this key has no effect, because comm=local uses one process."


def test_a_key_without_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert notes(capsys, "comm=mpi", "cluster.servers=2") == [f"parallax_runner: {SERVERS}"]
    assert notes(capsys, "comm=local", "cluster.workers=4") == [f"parallax_runner: {WORKERS}"]
    assert len(notes(capsys, "comm=local", "cluster.workers=4", "cluster.servers=2")) == 2


def test_a_sweep_names_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    told = notes(capsys, "-m", "comm=hybrid,mpi,sharded,local", "cluster.servers=2", "cluster.workers=4")
    both = "cluster.servers=2 cluster.workers=4"
    assert told == [
        f"parallax_runner: job 1 (comm=mpi {both}): {SERVERS}",
        f"parallax_runner: job 3 (comm=local {both}): {WORKERS}",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("comm=hybrid", "cluster.servers=2"),
        ("comm=auto", "cluster.servers=2"),
        ("comm=ps", "cluster.servers=2", "cluster.workers=4"),
        ("comm=mpi", "cluster.servers=0", "cluster.workers=4"),
        ("comm=local", "cluster.workers=1"),
        ("comm=local",),
    ],
)
def test_nothing_is_said_of_what_is_used(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert notes(capsys, *arguments) == []


# The words, the choice that is named, and the reason. The keys that belong to the choice get no note of their own.
UNUSED_CHOICES = {
    "search under mpi": (
        "comm=mpi partition=search",
        "partition=search",
        "comm=mpi has no servers, so no variable is split; this choice needs comm=ps or comm=hybrid.",
    ),
    "search under local": ("comm=local partition=search partition.max=4", "partition=search", "comm=local has no"),
    "search under sharded": ("comm=sharded partition=search partition.num=3", "partition=search", "has no servers"),
    "search of a simulation": (
        "comm=ps partition=search action=simulate",
        "partition=search",
        "action=simulate does not search.",
    ),
    "search of fit's epochs": (
        "comm=mpi partition=search train.patience=2 train.validate_steps=2",
        "partition=search",
        "comm=mpi has no servers",
    ),
    "profile of a plan": ("action=plan profile=steps", "profile=steps", "action=plan does not train."),
    "range of a plan": ("action=plan profile=range profile.range=[1,3]", "profile=range", "does not train."),
    "profile of a search": (
        "action=search partition=search profile=steps profile.steps=[1] profile.dir=x",
        "profile=steps",
        "action=search does not train.",
    ),
    "profile of a simulation": (
        "action=simulate profile=steps profile.steps=[1] profile.worker=0",
        "profile=steps",
        "action=simulate does not train.",
    ),
}


@pytest.mark.parametrize("name", UNUSED_CHOICES)
def test_each_choice_without_use_is_accepted_and_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    line, choice, reason = UNUSED_CHOICES[name]
    (told,) = notes(capsys, *line.split(" "))
    assert told.startswith(f"parallax_runner: {choice} (command line): this choice has no effect, because ")
    assert reason in told


@pytest.mark.parametrize(
    "line",
    [
        "comm=mpi partition=off",
        "comm=hybrid partition=search",
        "comm=mpi partition=fixed partition.num=4",  # the plan has a note
        "comm=ps action=search partition=search",
        "comm=ps action=plan partition=search",
        "action=plan profile=off",
        "action=verify profile=steps profile.steps=[1]",
    ],
)
def test_nothing_is_said_of_a_choice_that_is_used(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert notes(capsys, *line.split(" ")) == []


def test_a_choice_in_the_file_of_another_group_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "own" / "experiment"
    folder.mkdir(parents=True)
    defaults = "defaults:\n  - override /partition: search\n"
    (folder / "mine.yaml").write_text(f"# @package _global_\n{defaults}partition: {{max: 4}}\n")
    (told,) = notes(capsys, "--config-dir", "own", "experiment=mine", "comm=mpi")
    assert "partition=search (own/experiment/mine.yaml:3): this choice has no effect" in told


# The words, the key that is named, and the reason.
UNUSED = {
    "position": ("ckpt.resume=never ckpt.position=start", "ckpt.position=start", "ckpt.resume=never begins at the"),
    "position without checkpoints": ("ckpt=off ckpt.position=keep", "ckpt.position=keep", "ckpt is off; omit ckpt=off"),
    "profile": ("profile.steps=[3]", "profile.steps=[3]", "profile is off; add profile=steps."),
    "folder of no profile": ("profile.dir=x", "profile.dir=x", "profile is off; add profile=steps or profile=range."),
    "range": (
        "profile=steps profile.steps=[5] profile.range=[1,2]",
        "profile.range=[1, 2]",
        "profile=steps does not use it; add profile=range.",
    ),
    "steps": (
        "profile=range profile.range=[1,2] profile.steps=[5]",
        "profile.steps=[5]",
        "profile=range does not use it; add profile=steps.",
    ),
    "replicas": ("comm=hybrid cluster.replicas_per_worker=2", "cluster.replicas_per_worker=2", "has one replica"),
    "launcher": ("comm=local cluster.launcher=local", "cluster.launcher=local", "the driver starts the only process"),
    "Slurm": ("cluster.nodes=2", "cluster.nodes=2", "it is only for Slurm jobs and needs cluster=slurm."),
    "Slurm and Kubernetes": (
        "cluster.follow=true",
        "cluster.follow=true",
        "it is only for Slurm jobs or Kubernetes jobs and needs cluster=slurm or cluster=kubernetes.",
    ),
    "Kubernetes": ("cluster.image=a", "cluster.image=a", "needs cluster=kubernetes."),
    "manual": ("cluster.rendezvous=tcp://h:1", "cluster.rendezvous=tcp://h:1", "needs cluster=manual."),
    "backend": ("comm=local comm.backend=native", "comm.backend=native", "comm=local has one rank."),
    "backend of servers": (
        "comm=ps comm.backend=native",
        "comm.backend=native",
        "comm=ps keeps all variables on servers.",
    ),
    "compression": ("comm=local comm.compression=bf16", "comm.compression=bf16", "comm=local sends nothing."),
    "rows": ("comm=local comm.measure_rows=true", "comm.measure_rows=true", "comm=local sends nothing."),
    "mean": ("comm=ps comm.sync=false comm.average_sparse=false", "comm.average_sparse=false", "its own gradients."),
    "mpirun": ("comm=local comm.mpi.mpirun_options=-x", "comm.mpi.mpirun_options=-x", "does not use mpirun."),
    "Allgatherv under ps": ("comm=ps comm.mpi.use_allgatherv=true", "comm.mpi.use_allgatherv=true", "gathers nothing;"),
    "Allgatherv under auto": (
        "comm=auto comm.mpi.use_allgatherv=true",
        "comm.mpi.use_allgatherv=true",
        "comm=auto gathers only with Horovod; this key needs comm=mpi or comm=hybrid.",
    ),
    "protocol": ("comm=mpi comm.ps.protocol=grpc+verbs", "comm.ps.protocol=grpc+verbs", "comm=mpi has no servers;"),
    "boundary": ("comm=mpi comm.ps={boundary_among_servers:false}", "comm.ps.boundary_among_servers=false", "servers;"),
    "copies": (
        "comm=ps comm.sync=false comm.ps.replicate_variables=true",
        "comm.ps.replicate_variables=true",
        "this key needs comm.sync=true.",
    ),
    "staleness": ("comm=ps comm.ps.staleness=2", "comm.ps.staleness=2", "this key needs comm=ps comm.sync=false."),
    "backup under hybrid": (
        "comm=hybrid comm.ps.backup_workers=1",
        "comm.ps.backup_workers=1",
        "the allreduce of comm=hybrid waits for every worker",
    ),
    "backup under mpi": ("comm=mpi comm.ps.backup_workers=1", "comm.ps.backup_workers=1", "comm=mpi has no servers;"),
    "backup async": (
        "comm=ps comm.sync=false comm.ps.backup_workers=1",
        "comm.ps.backup_workers=1",
        "with comm.sync=false no worker waits for another;",
    ),
    "shards": ("partition.num=4", "partition.num=4", "partition=off does not split variables;"),
    "shards of a search": ("partition=search partition.num=4", "partition.num=4", "the search determines this number;"),
    "cut": ("partition.cut=by_bytes", "partition.cut=by_bytes", "partition=off does not split variables;"),
    "cut of a search": ("partition=search partition.cut=alike", "partition.cut=alike", "a search splits by bytes."),
    "bound": ("partition=fixed partition.max=4", "partition.max=4", "partition=fixed does not search;"),
    "checkpoint": ("ckpt=off ckpt.keep=3", "ckpt.keep=3", "ckpt is off; omit ckpt=off."),
    "tracker": (
        "tracking=off tracking.tracker=mlflow",
        "tracking.tracker=mlflow",
        "tracking is off; omit tracking=off.",
    ),
    "tag": ("tracking=off +tracking.tags.a=b", "tracking.tags.a=b", "tracking is off;"),
    "launcher option": (
        "+cluster.options.nice=5",
        "cluster.options.nice=5",
        "cluster.launcher=auto has no options.",
    ),
    "option of Slurm": (
        "comm=mpi cluster=slurm +cluster.options.nice=5",
        "cluster.options.nice=5",
        "cluster.launcher=slurm has no options.",
    ),
    "option": ("+tracking.options.file=x", "tracking.options.file=x", "tracking.tracker=mlflow has no options."),
    "simulation": ("simulate.latency_us=5", "simulate.latency_us=5", "action=train does not simulate;"),
}


@pytest.mark.parametrize("name", UNUSED)
def test_each_key_without_use_is_accepted_and_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    line, key, reason = UNUSED[name]
    (told,) = notes(capsys, *line.split(" "))
    assert told.startswith(f"parallax_runner: {key} (command line): this key has no effect, because ")
    assert reason in told


@pytest.mark.parametrize(
    "line",
    [
        "profile=off,steps profile.steps=[2]",
        "comm=mpi,ps,sharded comm.ps.replicate_variables=true",
        "comm=local,mpi comm.compression=bf16",
        "comm=ps,hybrid cluster.replicas_per_worker=2",
        "comm=hybrid,mpi,local comm.ps.backup_workers=1 cluster.workers=1",
        "ckpt=off,default ckpt.save_steps=5",
        "tracking=off,mlflow tracking.experiment=x",
        "partition=off,fixed,search partition.num=4",
        "comm=mpi,ps,hybrid partition=search",
        "comm=mpi,ps,hybrid partition=search partition.min=2 partition.max=8",
        "action=plan,train,search profile=steps profile.steps=[1] partition=search",
    ],
)
def test_each_sweep_over_a_group_names_a_key_once(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(notes(capsys, "-m", *line.split(" "))) == 1


def test_a_key_in_the_file_of_another_group_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    (told,) = notes(capsys, "experiment=wide_vocabulary", "comm=mpi")
    assert "cluster.servers=2 (" in told and "wide_vocabulary.yaml:16): this key has no effect" in told
    assert notes(capsys, "experiment=quick") == []


def config_of(*overrides: str) -> RunConfig:
    return validated(Composer().job(list(overrides)))


def test_a_run_behaves_as_the_note_says() -> None:
    assert config_of("comm=hybrid", "cluster.replicas_per_worker=2").cluster.replicas_per_worker == 1
    assert config_of("comm=ps", "cluster.replicas_per_worker=2").cluster.replicas_per_worker == 2
    assert config_of("comm=local", "comm.compression=bf16").comm.compression == "off"
    assert config_of("comm=mpi", "comm.compression=bf16").comm.compression == "bf16"
    assert config_of("comm=mpi", "comm.ps.backup_workers=1").comm.ps.backup_workers == 0
    assert config_of("comm=auto", "comm.mpi.use_allgatherv=true").comm.mpi.use_allgatherv is False
    simulated = config_of("comm=mpi", "action=simulate", "comm.ps.boundary_among_servers=false")
    assert simulated.comm.ps.boundary_among_servers is False, "a simulation includes the modes with servers"


def test_a_choice_without_effect_is_not_made() -> None:
    for line, choice, _ in UNUSED_CHOICES.values():
        config = config_of(*line.split(" "))
        group = choice.partition("=")[0]
        assert {"partition": config.partition.name, "profile": config.profile.name}[group] == "off"
    partition = config_of("comm=mpi", "partition=search", "partition.max=4", "partition.num=2").partition
    assert partition == config_of("comm=mpi").partition
    searching = config_of("comm=hybrid", "partition=search", "partition.max=4").partition
    assert (searching.name, searching.max) == ("search", 4)
    assert config_of("action=verify", "profile=steps", "profile.steps=[1]").profile.name == "steps"


def test_a_key_is_unused_for_the_same_reason_afterwards() -> None:
    """The notes are made from the configuration that the rules have changed."""
    for line, *_ in (UNUSED | UNUSED_CHOICES).values():
        config = config_of(*line.split(" "))
        assert without_unused(config) == config
    assert [rule.key for rule in RULES if rule.value is KEPT and rule.key.startswith("comm.")] == []
