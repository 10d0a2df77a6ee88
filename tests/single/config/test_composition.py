"""The configuration itself: defaults, choices, jobs, the frozen file."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser
from omegaconf import OmegaConf

import parallax_runner
from parallax_runner.config.compose import Composer, resolve
from parallax_runner.config.frozen import freeze, from_plain, job_config, load, plain
from parallax_runner.config.location import conf_dir
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.validate import validate
from parallax_runner.driver.check import check
from parallax_runner.driver.make_plan import cut_of
from parallax_runner.driver.partition_search import with_partitions
from parallax_runner.planning.cut import Cut

PACKAGE = Path(parallax_runner.__file__).parent
# What a choice leaves to its user.
NEEDED = {
    "hosts": ["cluster.resource_info=[localhost]"],
    "kubernetes": ["cluster.image=example/image:1", "cluster.volumes=[claim:/runs]", "tracking=off"],
    "manual": ["cluster.rendezvous=file:///shared/meet"],
    "range": ["profile.range=[1,3]"],
    "script": ["model.path=train.py"],
    "fit": ["model.path=train.py", "model.epoch_steps=10"],
    "steps": ["profile.steps=[1]"],
    "tabular": ["data.train=rows.csv"],
    "folds": ["data.train=rows.csv"],
    "backtest": ["data.train=rows.csv"],
}


def compose(*lines: str) -> RunConfig:
    job = Composer().job(lines)
    return validate(resolve(job), job.origins)


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def test_defaults() -> None:
    config = compose()
    assert (config.action, config.comm.name, config.comm.sync, config.comm.average_sparse) == (
        "train",
        "hybrid",
        True,
        True,
    )
    assert (config.cluster.workers, config.cluster.servers, config.cluster.threads_per_worker) == (2, 1, 1)
    assert (config.partition.name, config.partition.num) == ("off", 1)
    assert (config.train.steps, config.train.seed, config.train.log_every) == (200, 1, 10)
    assert (config.ckpt.save_steps, config.ckpt.save_secs, config.ckpt.keep, config.ckpt.resume) == (
        None,
        600,
        5,
        "auto",
    )
    assert config.ckpt.dir == f"{config.run_dir}/ckpt"
    assert (config.tracking.uri, config.tracking.experiment) == ("sqlite:///mlflow.db", "parallax_runner")


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("comm", ["auto", "hybrid", "local", "mpi", "ps", "sharded"]),
        ("partition", ["fixed", "off", "search"]),
        ("cluster", ["hosts", "kubernetes", "local", "manual", "slurm"]),
        ("ckpt", ["default", "off"]),
        ("tracking", ["mlflow", "off"]),
        ("profile", ["off", "range", "steps"]),
        ("train", ["debug", "default"]),
    ],
)
def test_every_choice_composes(group: str, expected: list[str]) -> None:
    assert choices(group) == expected, "a choice exists once it works"
    for choice in expected:
        config = compose(f"{group}={choice}", *NEEDED.get(choice, ()))
        chosen = getattr(config, group)
        assert getattr(chosen, "name", choice) == choice


@pytest.mark.parametrize(("group", "at_least"), [("experiment", 9), ("model", 6), ("optimizer", 6)])
def test_every_file_composes(group: str, at_least: int) -> None:
    assert len(choices(group)) >= at_least
    for choice in choices(group):
        lines = (f"{group}={choice}", *NEEDED.get(choice, ()))
        assert Composer().job(lines).config.hydra.runtime.choices[group] == choice
        assert compose(*lines).model["_target_"]


@pytest.mark.parametrize("choice", choices("data"))
def test_every_data_set_composes(choice: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words\n")
    fixed = [f"data={choice}", "model.vocab_size=100"]  # which not every dataset has
    data = Composer().job(fixed).config.data
    fixed += [f"data.{key}={tmp_path}" for key in ("path", "train") if OmegaConf.is_missing(data, key)]
    assert compose(*fixed).data["batch_size"] >= 1


def test_no_file_of_conf_is_left_out() -> None:
    """Each is composed above, or is the one that composes them."""
    groups = {str(path.relative_to(conf_dir()).parent) for path in conf_dir().rglob("*.yaml")}
    composed_above = {"comm", "partition", "cluster", "ckpt", "tracking", "profile", "train"}
    assert groups == {".", "data", "hydra/help", "experiment", "model", "optimizer", *composed_above}
    (help_file,) = (conf_dir() / "hydra" / "help").iterdir()
    assert Composer().job([]).config.hydra.runtime.choices["hydra/help"] == help_file.stem


def test_jobs_of_every_experiment_are_valid() -> None:
    for choice in choices("experiment"):
        for job in Composer().jobs([f"experiment={choice}", *NEEDED.get(choice, ())], multirun=False):
            validate(resolve(job), job.origins)
    assert len(list(Composer().jobs(["experiment=lm_modes"], multirun=False))) == 6
    assert compose("experiment=wide_vocabulary").model["vocab_size"] == 200_000


def test_sweeps_whose_jobs_write_apart_are_valid() -> None:
    apart = ["ckpt.dir=elsewhere/${hydra:job.num}", "profile=steps", "profile.steps=[1]"]
    named = ["hydra/sweeper=optuna", "comm=choice(mpi,ps)", "hydra.sweep.subdir=${hydra.job.override_dirname}"]
    optuna = ["hydra/sweeper=optuna", "comm=choice(mpi,ps)", *apart]
    for lines, jobs in ((["comm=mpi,ps", *apart], 2), (optuna, 0), (named, 0)):  # Optuna chooses its jobs later.
        sweep = check(get_args_parser().parse_args(["-m", *lines]))
        assert sweep is not None
        assert (len(sweep.jobs), list(sweep.swept)) == (jobs, ["comm"])


def test_what_nobody_asked_for_is_not_refused() -> None:
    """A choice by its name has the fields of another choice's file."""
    assert compose("comm=hybrid", "comm.name=auto", "comm.routes=null").comm.measure_rows is False
    searched = compose("partition=search", "partition.min=1", "partition.steps_per_trial=20")
    assert cut_of(searched) is Cut.BY_BYTES
    assert with_partitions(searched, 4).partition.cut == "by_bytes"


def test_experiment_changes_what_stands_in_any_file() -> None:
    config = compose("experiment=quick")
    assert config.train.steps == 5
    assert config.ckpt.enabled is False
    assert compose("experiment=quick", "train.steps=7").train.steps == 7


def test_jobs_of_a_sweep() -> None:
    jobs = list(Composer().jobs(["comm=mpi,ps", "train.seed=1,2", "train.steps=9"], multirun=True))
    configs = [resolve(job) for job in jobs]
    assert [(config.comm.name, config.train.seed, config.train.steps) for config in configs] == [
        ("mpi", 1, 9),
        ("mpi", 2, 9),
        ("ps", 1, 9),
        ("ps", 2, 9),
    ]
    assert [Path(config.run_dir).name for config in configs] == [
        "comm-mpi+train.seed-1",
        "comm-mpi+train.seed-2",
        "comm-ps+train.seed-1",
        "comm-ps+train.seed-2",
    ]


@pytest.mark.parametrize(("line", "name"), [("tracking.run_name=null", "comm=ps"), ("tracking.run_name=own", "own")])
def test_a_job_of_a_sweep_is_recorded_under_its_title(line: str, name: str) -> None:
    (job,) = Composer().jobs(["comm=ps", line], multirun=True)
    assert job_config(resolve(job), Path("sweep"), "comm=ps").tracking.run_name == name


def test_tags_and_builder_arguments_can_be_added_and_removed() -> None:
    config = compose("+tracking.tags.team=x", "+model.extra=3", "~model.keep_prob")
    assert config.tracking.tags == {"team": "x"}
    assert config.model["extra"] == 3
    assert "keep_prob" not in config.model


def test_mpirun_options_are_a_string_or_a_list() -> None:
    assert compose("comm.mpi.mpirun_options='--bind-to none'").comm.mpi.mpirun_options == "--bind-to none"
    assert compose("comm.mpi.mpirun_options=[--bind-to,none]").comm.mpi.mpirun_options == ("--bind-to", "none")


def test_frozen_file_reads_back_the_same(tmp_path: Path) -> None:
    config = compose("train.steps=3", "comm.mpi.mpirun_options=[-x,A]", f"run_dir={tmp_path}/run")
    path = freeze(config, config.run_dir)
    assert path == tmp_path / "run" / "config.yaml"
    assert "${" not in path.read_text()
    loaded = load(config.run_dir)
    assert loaded == config
    with pytest.raises(FrozenInstanceError):
        loaded.train.steps = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        loaded.model["vocab_size"] = 4  # type: ignore[index]
    assert from_plain(plain(loaded)) == loaded


def test_only_this_package_knows_what_hydra_composes() -> None:
    sources = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "config" not in path.parents]
    assert len(sources) > 100
    assert [path for path in sources if "omegaconf" in path.read_text(encoding="utf-8")] == []
