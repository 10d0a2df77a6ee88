"""Values of environment variables: they reach the processes of a run, and nothing that is written."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from parallax_runner.config import environment, frozen
from parallax_runner.config.compose import Composer
from parallax_runner.config.frozen import ckpt_dir_of, freeze, load, needed_variables, plain, written
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.check import checked_job
from parallax_runner.driver.launch_spec import launch_spec
from parallax_runner.driver.recording import recorded
from parallax_runner.driver.used_params import used_params
from parallax_runner.errors import ConfigError
from parallax_runner.plan.plan import Plan
from parallax_runner.track.params import flatten

SECRET = "hunter2-hunter2"
LINES = ("model=simple", "tracking.uri=sqlite:///x.db", "comm=local")
# The overrides, and what the model's `argument` is.
KINDS: dict[str, tuple[list[str], Any]] = {
    "alone": (["+model.argument=${oc.env:PW}"], SECRET),
    "within a text": (["+model.argument='postgres://me:${oc.env:PW}@host/${model_name}'"], None),
    "with a default": (["+model.argument=${oc.env:PW,none}"], SECRET),
    "whose default counts": (["+model.argument=${oc.env:UNSET_,fallback}"], "fallback"),
    "whose default is another": (["+model.argument='${oc.env:UNSET_,${oc.env:PW}}'"], SECRET),
    "of another key": (["+model.other=${oc.env:PW}", "+model.argument=${model.other}"], SECRET),
    "of a key of another key": (
        ["+model.a=${oc.env:PW}", "+model.b=${.a}", "+model.argument='x${model.b}'"],
        f"x{SECRET}",
    ),
    "decoded": (["+model.argument='${oc.decode:${oc.env:NUMBERS}}'"], [1, {"a": SECRET}]),
    "in a list": (["+model.argument=[1,{a:'${oc.env:PW}'}]"], [1, {"a": SECRET}]),
    "named by another variable": (["+model.argument='${oc.env:${oc.env:NAME_OF}}'"], SECRET),
    "of the data": (["+data.argument=${oc.env:PW}", "+model.argument=1"], 1),
}


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", SECRET)
    monkeypatch.setenv("NAME_OF", "PW")
    monkeypatch.setenv("NUMBERS", f"[1,{{a:{SECRET}}}]")
    monkeypatch.delenv(environment.VARIABLE, raising=False)


def composed(tmp_path: Path, *lines: str) -> RunConfig:
    return checked_job(Composer().job([*LINES, *lines, f"hydra.run.dir={tmp_path / 'run'}"]))


def sent(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process one of the run's, on a host that does not have the variables."""
    for name, value in frozen.for_processes(config).items():
        monkeypatch.setenv(name, value)
    for name in ("PW", "NAME_OF", "NUMBERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("kind", KINDS)
def test_the_value_is_in_no_file_and_reaches_a_worker(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, expected = KINDS[kind]
    config = composed(tmp_path, *lines)
    if expected is not None:
        assert plain(config)["model"]["argument"] == expected
    text = freeze(config, tmp_path).read_text()
    told = [text, json.dumps(flatten(used_params(config))), json.dumps(recorded(config)), json.dumps(written(config))]
    assert not any(SECRET in one for one in told)
    assert "${oc.env:" in text
    sent(config, monkeypatch)
    assert load(tmp_path) == config


def test_a_copy_of_a_group_has_the_groups_secret() -> None:
    config = OmegaConf.create({"a": {"b": "${oc.env:PW}", "c": 1}, "copy": "${a}", "other": "${a.c}"})
    found = environment.found_in(config)
    assert {path: one.written for path, one in found.items()} == {("a", "b"): "${oc.env:PW}", ("copy",): "${a}"}
    assert found["copy",].value == {"b": SECRET, "c": 1}
    content = OmegaConf.to_container(config, resolve=True)
    assert environment.as_written(content, found) == {"a": {"b": "${oc.env:PW}", "c": 1}, "copy": "${a}", "other": 1}


def test_variables_without_a_default_are_needed(tmp_path: Path) -> None:
    lines = ["+model.a=${oc.env:PW}", "+model.b=${oc.env:NAME_OF,x}", "+model.c='${oc.env:UNSET_,${oc.env:NUMBERS}}'"]
    assert needed_variables(composed(tmp_path, *lines)) == ["NUMBERS", "PW"]


def test_a_number_keeps_its_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED", "17")
    config = composed(tmp_path, "train.seed=${oc.env:SEED}", "+model.on='${oc.decode:${oc.env:ON,true}}'")
    assert (config.train.seed, config.model["on"]) == (17, True)
    freeze(config, tmp_path)
    monkeypatch.delenv("SEED")
    sent(config, monkeypatch)
    assert (load(tmp_path).train.seed, load(tmp_path).model["on"]) == (17, True)


ODD = [
    *("a${b}", "\\${x}", "\\\\${x}", "end\\", "${", "$", "\\\\\\${q}", "$${x}", "}{", "x\\y${z}", "${oc.env:PW}"),
    *(" spaces ", "quotes ' \" `", "line\nfeed\ttab", "ü€𝄞", "# no comment", "key: value", "- item", "%s{}", "null"),
    *("true", "1e3", "0x10", "2026-01-01", "*alias", "&anchor", "!!python/none", "@", "[1", "{", "x" * 50_000),
]


@pytest.mark.parametrize("secret", ODD, ids=range(len(ODD)))
def test_odd_secrets(secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", secret)
    config = composed(tmp_path, "+model.argument=${oc.env:PW}", "+model.list=['a ${oc.env:PW}']")
    assert config.model["argument"] == secret
    assert "argument: ${oc.env:PW}" in freeze(config, tmp_path).read_text()
    sent(config, monkeypatch)
    assert load(tmp_path).model["argument"] == secret
    assert load(tmp_path).model["list"] == (f"a {secret}",)


def test_a_literal_that_looks_like_an_interpolation_stays_one(tmp_path: Path) -> None:
    config = composed(tmp_path, "+model.argument='\\${oc.env:PW}'")
    assert config.model["argument"] == "${oc.env:PW}"
    freeze(config, tmp_path)
    assert load(tmp_path).model["argument"] == "${oc.env:PW}"


def test_a_value_that_was_changed_is_the_changed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the driver, which makes folders absolute."""
    monkeypatch.setenv("PLACE", "relative")
    config = composed(tmp_path, "ckpt.dir=${oc.env:PLACE}/ckpt")
    assert written(config)["ckpt"]["dir"] == "${oc.env:PLACE}/ckpt"
    changed = dataclasses.replace(config, ckpt=dataclasses.replace(config.ckpt, dir="/relative/ckpt"))
    freeze(changed, tmp_path)
    monkeypatch.delenv("PLACE")
    sent(changed, monkeypatch)
    assert load(tmp_path).ckpt.dir == "/relative/ckpt"


def test_without_the_variable_one_sentence_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "/place")
    freeze(composed(tmp_path, "ckpt.dir=${oc.env:PLACE}/ckpt"), tmp_path)
    assert ckpt_dir_of(tmp_path) == "/place/ckpt"
    monkeypatch.delenv("PLACE")
    for read in (load, ckpt_dir_of):
        with pytest.raises(ConfigError, match=r"config\.yaml: ckpt\.dir cannot be read: .*'PLACE' not found; set the"):
            read(tmp_path)
    with pytest.raises(ConfigError, match=r"ckpt\.dir=\$\{oc\.env:PLACE\}/ckpt \(command line\): .*'PLACE' not found"):
        composed(tmp_path, "ckpt.dir=${oc.env:PLACE}/ckpt")


def test_tags_and_datasets_have_the_interpolation(tmp_path: Path) -> None:
    from parallax_runner.driver.datasets import dataset_facts
    from parallax_runner.graph.build import MODEL

    lines = ["+tracking.tags.db=${oc.env:PW}", "tracking.experiment=${oc.env:PW}"]
    content = recorded(composed(tmp_path, *lines))
    assert content["tracking"]["tags"] == {"db": "${oc.env:PW}"}
    assert content["tracking"]["experiment"] == SECRET, "the name of what the tracker opens"
    config = composed(tmp_path)
    dataset = MODEL.load_dataset(config)
    secret = composed(tmp_path, "+data.secret=${oc.env:PW}")
    (facts, *_) = dataset_facts(secret, dataset)
    assert facts.source["secret"] == "${oc.env:PW}"


def test_the_values_are_in_the_environment_of_each_process_and_on_no_command_line(tmp_path: Path) -> None:
    config = composed(tmp_path, "+model.argument=${oc.env:PW}")
    plan = Plan("local", workers=1, servers=0, fingerprint="", variables=(), notes=())
    job = launch_spec(config, plan, tmp_path).job
    assert json.loads(job.env[environment.VARIABLE]) == [[["model", "argument"], SECRET]]
    assert not any(SECRET in word for word in job.worker_argv())
    nothing = launch_spec(composed(tmp_path), plan, tmp_path).job
    assert nothing.env[environment.VARIABLE] == "[]", "not that of a run in whose worker this driver runs"


def test_a_process_of_the_run_reads_the_value(tmp_path: Path) -> None:
    config = composed(tmp_path, "+model.argument=${oc.env:PW}")
    freeze(config, tmp_path)
    code = "import sys; from parallax_runner.config.frozen import load; print(load(sys.argv[1]).model['argument'])"
    env = {name: value for name, value in os.environ.items() if name != "PW"} | frozen.for_processes(config)
    done = subprocess.run([sys.executable, "-c", code, tmp_path], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{SECRET}\n"


def test_the_users_own_configurations_are_resolved_as_before(tmp_path: Path) -> None:
    composed(tmp_path, "+model.argument=${oc.env:PW}")
    assert OmegaConf.create({"a": "${oc.env:PW}", "b": "${oc.env:UNSET_,x}"}).a == SECRET
    assert OmegaConf.create({"b": "${oc.env:UNSET_,x}"}).b == "x"
