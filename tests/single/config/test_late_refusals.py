"""The origin of a key in an error that is raised after Hydra has started the job."""

import dataclasses
from pathlib import Path

import pytest

from parallax_runner.config import running_job
from parallax_runner.config.compose import Composer
from parallax_runner.config.late_refusals import name_origins, with_origins
from parallax_runner.driver import pipeline
from parallax_runner.driver.check import validated
from parallax_runner.errors import ConfigError, ParallaxError, PlanError, ScriptError
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


def told(message: str, kind: type[ParallaxError] = PlanError) -> str:
    error = kind(message)
    name_origins(error, validated(Composer().job(list(LINES))))
    return str(error)


@pytest.mark.parametrize(
    ("message", "begin"),
    [
        ("partition.num=9: too many", "partition.num=9 (command line): too many"),
        ("comm=ps: variable «a» cannot", "comm=ps (command line): variable «a» cannot"),
        ("train.objective=auc needs validations", "train.objective=auc (command line) needs validations"),
        ("data.cardinalities[1]=0: expected", "data.cardinalities[1]=0 (command line): expected"),
        ("ckpt.dir={cwd}/kept: no folder", "ckpt.dir={cwd}/kept (command line): no folder"),
        ("run_dir={cwd}/here: locked", "run_dir={cwd}/here (command line): locked"),
    ],
)
def test_a_setting_at_the_beginning_gets_its_origin(message: str, begin: str, tmp_path: Path) -> None:
    assert told(message.format(cwd=tmp_path)) == begin.format(cwd=tmp_path)


def test_several_settings_get_their_origins() -> None:
    message = told("partition.num=9, train.steps=20, action=train: too large", ConfigError)
    assert message.startswith("partition.num=9 (command line), train.steps=20 (command line), action=train (")
    assert "conf/config.yaml:" in message and message.endswith("): too large")


def test_a_default_is_named_by_its_file() -> None:
    assert "conf/train/default.yaml:" in told("train.on_nan=stop: wrong").partition("): wrong")[0]
    assert told("comm.ps.protocol=grpc: unknown") == "comm.ps.protocol=grpc (default): unknown"


def test_the_choice_of_a_group_is_named_by_the_file_that_chooses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Composer().job([])
    monkeypatch.setattr(running_job, "origins_of_running_job", lambda: job.origins)
    error = PlanError("comm=hybrid: variable")
    name_origins(error, validated(Composer().job([])))
    assert "conf/config.yaml:" in str(error) and str(error).endswith("): variable")


@pytest.mark.parametrize(
    "message",
    [
        "partition.num=9 (command line): too many",
        "partition.num=7: not the value of this configuration",
        "comm=local: the mode of a trial",
        "no.such.key=9: unknown",
        "variable «a» needs train.steps=20: no",
        "partition.num=90: another value with the same beginning",
        "the loss is not finite",
    ],
)
def test_other_messages_stay(message: str) -> None:
    assert told(message) == message


def test_errors_of_other_kinds_stay() -> None:
    config = validated(Composer().job(list(LINES)))
    script, plain = ScriptError("partition.num=9: x", exit_status=3), ValueError("partition.num=9: x")
    name_origins(script, config)
    name_origins(plain, config)
    assert (str(script), script.exit_status) == ("partition.num=9 (command line): x", 3)
    assert str(plain) == "partition.num=9: x"


def test_the_origin_of_a_worker_s_setting_is_named() -> None:
    config = validated(Composer().job(list(LINES)))
    failure = Failure("worker", 1, "b", "data.cardinalities[1]=0: expected 1 to 2^48 ids.", (), recurs=True)
    for recurs, told in ((True, "data.cardinalities[1]=0 (command line): expected"), (False, failure.reason)):
        result = pipeline._with_origins(RunResult("failed", 1, dataclasses.replace(failure, recurs=recurs)), config)
        assert result.failure is not None and str(result.failure).startswith(f"worker 1 on b: {told}")
    assert pipeline._with_origins(RunResult("finished", 0), config) == RunResult("finished", 0)


@pytest.mark.parametrize("function", ["fit", "parallel_run"])
def test_in_a_script_the_function_gives_the_overrides(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the origins of a call are looked up as in a script
    job = Composer().job(list(LINES))
    config, message = validated(job), "partition.num=9, comm=ps, action=train: wrong"
    with running_job.job_of_call(job.origins.given_by(function)):
        told = with_origins(message, config)
    assert told.startswith(f"partition.num=9 ({function}), comm=ps ({function}), action=train (")
    assert "conf/config.yaml:" in told and job.origins.giver == "command line"
    assert with_origins(message, config) == message


def test_without_a_job_of_hydra_there_is_no_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_job, "origins_of_running_job", lambda: None)
    assert told("partition.num=9: too many") == "partition.num=9: too many"
