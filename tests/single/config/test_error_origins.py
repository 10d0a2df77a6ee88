"""The origin of a setting in an error that is raised after Hydra has started the job."""

import dataclasses
from pathlib import Path

import pytest

from parallax_runner.config import running_job
from parallax_runner.config.compose import Composer
from parallax_runner.config.error_origins import name_origins, with_origins
from parallax_runner.driver import failure_origins
from parallax_runner.driver.check import validated
from parallax_runner.errors import ConfigError, ErrorParts, ParallaxError, PlanError, ScriptError, Setting
from parallax_runner.launch.blame.first_death import Failure
from parallax_runner.launch.processes import RunResult

LINES = (
    *("comm=ps", "partition=fixed", "partition.num=9", "train.objective=auc", "train.steps=20", "model=dlrm_keras"),
    *("ckpt.resume=never", "ckpt.dir=kept", "hydra.run.dir=here", "data.cardinalities=[3,0]", "cluster.servers=1"),
)


@pytest.fixture(autouse=True)
def _running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Hydra ran the job of LINES."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running_job, "origins_of_running_job", lambda: Composer().job(list(LINES)).origins)


def told(*settings: Setting, kind: type[ParallaxError] = PlanError) -> str:
    error = kind("wrong").about(*settings)
    name_origins(error, validated(Composer().job(list(LINES))))
    return str(error)


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        (Setting.of("partition.num", 9), "partition.num=9 (command line): wrong"),
        (Setting("comm", "ps"), "comm=ps (command line): wrong"),
        (Setting("train.objective", "auc"), "train.objective=auc (command line): wrong"),
        (Setting("train.objective", None), "train.objective (command line): wrong"),
        (Setting.of("data.cardinalities", 0, item=1), "data.cardinalities[1]=0 (command line): wrong"),
        (Setting.of("data.cardinalities", [3, 0]), "data.cardinalities=[3, 0] (command line): wrong"),
    ],
)
def test_a_setting_gets_its_origin(setting: Setting, shown: str) -> None:
    assert told(setting) == shown


def test_a_folder_gets_its_origin_however_its_path_is_shown(tmp_path: Path) -> None:
    for path in ("kept", tmp_path / "kept"):
        assert told(Setting.of("ckpt.dir", path)) == f"ckpt.dir={path} (command line): wrong"
    assert told(Setting.of("run_dir", tmp_path / "here")) == f"run_dir={tmp_path}/here (command line): wrong"


def test_several_settings_get_their_origins() -> None:
    settings = (Setting.of("partition.num", 9), Setting.of("train.steps", 20), Setting("action", "train"))
    message = told(*settings, kind=ConfigError)
    assert message.startswith("partition.num=9 (command line), train.steps=20 (command line), action=train (")
    assert "conf/config.yaml:" in message and message.endswith("): wrong")


def test_a_default_is_named_by_its_file() -> None:
    assert "conf/train/default.yaml:" in told(Setting("train.on_nan", "stop")).partition("): wrong")[0]
    assert told(Setting("comm.ps.protocol", "grpc")) == "comm.ps.protocol=grpc (default): wrong"


def test_the_choice_of_a_group_is_named_by_the_file_that_chooses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Composer().job([])
    monkeypatch.setattr(running_job, "origins_of_running_job", lambda: job.origins)
    error = PlanError("wrong").about(Setting("comm", "hybrid"))
    name_origins(error, validated(job))
    assert "conf/config.yaml:" in str(error) and str(error).endswith("): wrong")


@pytest.mark.parametrize(
    "setting",
    [
        Setting("partition.num", "9", where="a file"),
        Setting.of("partition.num", 7),  # the value of a trial
        Setting.of("partition.num", 90),
        Setting("comm", "local"),  # the mode of a trial
        Setting("no.such.key", "9"),
        Setting("no.such.key", None),
        Setting("train.steps.more", "9"),
        Setting("data.cardinalities", "0", item=0),
        Setting("data.cardinalities", "0", item=2),
        Setting("train.steps", "20", item=0),
    ],
)
def test_other_settings_stay(setting: Setting) -> None:
    assert told(setting) == f"{setting}: wrong"


def test_a_text_is_not_read() -> None:
    error = PlanError("partition.num=9: wrong")
    name_origins(error, validated(Composer().job(list(LINES))))
    assert str(error) == "partition.num=9: wrong"


def test_errors_of_other_kinds_stay() -> None:
    config = validated(Composer().job(list(LINES)))
    script, plain = ScriptError("partition.num=9: x", exit_status=3), ValueError("partition.num=9: x")
    name_origins(script, config)
    name_origins(plain, config)
    assert (str(script), script.exit_status) == ("partition.num=9: x", 3)
    assert str(plain) == "partition.num=9: x"


def test_the_origin_of_a_worker_s_setting_is_named() -> None:
    config = validated(Composer().job(list(LINES)))
    parts = ErrorParts("expected 1 to 2^48 ids.", (Setting("data.cardinalities", "0", item=1),))
    failure = Failure("worker", 1, "b", str(parts), (), recurs=True, parts=parts)
    result = failure_origins.with_origins(RunResult("failed", 1, failure), config)
    assert str(result.failure) == "worker 1 on b: data.cardinalities[1]=0 (command line): expected 1 to 2^48 ids."
    assert failure_origins.with_origins(result, config) == result
    other = RunResult("failed", 1, dataclasses.replace(failure, parts=None))
    assert failure_origins.with_origins(other, config) == other
    assert failure_origins.with_origins(RunResult("finished", 0), config) == RunResult("finished", 0)


@pytest.mark.parametrize("function", ["fit", "parallel_run"])
def test_in_a_script_the_function_gives_the_overrides(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the origins of a call are looked up as in a script
    job = Composer().job(list(LINES))
    config = validated(job)
    parts = ErrorParts("wrong", (Setting("partition.num", "9"), Setting("comm", "ps"), Setting("action", "train")))
    with running_job.job_of_call(job.origins.given_by(function)):
        told = str(with_origins(parts, config))
    assert told.startswith(f"partition.num=9 ({function}), comm=ps ({function}), action=train (")
    assert "conf/config.yaml:" in told and job.origins.giver == "command line"
    assert with_origins(parts, config) == parts


def test_without_a_job_of_hydra_there_is_no_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_job, "origins_of_running_job", lambda: None)
    assert told(Setting("partition.num", "9")) == "partition.num=9: wrong"
