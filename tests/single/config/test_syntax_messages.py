"""Words that are no settings, flags, and folders and files that the command line names."""

import re
from pathlib import Path

import pytest

from tests.single.config.refused import run, wrong_line

CASES = {
    "setting with dashes": (
        "--train.steps 100",
        "--train.steps 100 (command line): write settings as key=value, without dashes.",
        "Did you mean train.steps=100?",
    ),
    "setting with dashes and an equals sign": ("--train.step=100 comm=mpi", "Did you mean train.steps=100?"),
    "setting with dashes by its last name": ("comm=mpi --workers 4", "Did you mean cluster.workers=4?"),
    "setting with a dash that begins as a flag": ("-comm.sync=false", "Did you mean comm.sync=false?"),
    "flag": ("--multirn comm=mpi", "--multirn (command line): there is no such flag. Did you mean --multirun?"),
    "no flag": ("--no-such-flag", "--no-such-flag (command line): there is no such flag. Write settings as"),
    "value of a flag": ("--cfg jib", "argument --cfg/-c: invalid choice: 'jib'"),
    "flags together": ("--info --cfg job", "only one of --run, --multirun, --cfg"),
    "syntax": ("train.steps==", "train.steps== (command line)", "expected key=value"),
    "no value": ("train.steps", "train.steps (command line)", "expected key=value"),
    "no key": ("=5", "=5 (command line)", "expected key=value"),
    "unquoted behind an address": ("tracking.uri=https://a/#/", "'#', which must be quoted"),
    "unquoted": ("data.path=~/text", "data.path=~/text (command line)", "'~', which must be quoted"),
    "unclosed": ("train.steps='5", "train.steps='5 (command line)", "a string that is not closed"),
    "folder": ("--config-dir /no/such", "--config-dir=/no/such (command line)"),
    "searched folder": ("hydra.searchpath=[file:///no/such]", "hydra.searchpath=file:///no/such (command line)"),
    "searched text": ("hydra.searchpath=own", "hydra.searchpath=own (command line): expected a list of folders"),
    "file": ("--config-name nosuch", "--config-name=nosuch (command line)"),
    "shown": ("--cfg job train.step=5", "train.step=5 (command line)", "Did you mean train.steps=5?"),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_syntax(name: str, tmp_path: Path) -> None:
    wrong_line(CASES[name], tmp_path)


@pytest.mark.parametrize("name", ["unquoted", "folder", "shown"])
def test_wrong_syntax_as_a_user_types_it(name: str, tmp_path: Path) -> None:
    wrong_line(CASES[name], tmp_path, respond=run)


def test_flags_that_exclude_each_other(tmp_path: Path) -> None:
    for arguments in (["--info", "--cfg", "job"], ["--resolve"], ["--no-such-flag"]):
        result = run(*arguments, cwd=tmp_path)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [("train.step=5",), ("--cfg", "job", "--resolve")])
def test_without_heavy_imports(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """A refusal, or what is shown of the configuration, does not wait for TensorFlow (4 s) or MLflow (1.2 s)."""
    result = run(*arguments, cwd=tmp_path, python=("-X", "importtime"))
    imported = set(re.findall(r"\| +(\w+)$", result.stderr, flags=re.MULTILINE))
    assert "hydra" in imported
    assert not imported & {"tensorflow", "mlflow", "horovod", "keras"}
