"""Commands that only show something, `-m` among them or not, and completion."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from parallax_runner.config.key_meanings import keys_of_group
from parallax_runner.track.origin import program
from tests.single.config.in_process import answer


def show(*arguments: str, cwd: Path) -> str:
    command = [sys.executable, "-X", "importtime", "-m", "parallax_runner", *arguments]
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert not list(cwd.iterdir()), "it only shows"
    imported = {
        line.rpartition("|")[2].strip() for line in result.stderr.splitlines() if line.startswith("import time:")
    }
    heavy = {"tensorflow", "mlflow", "optuna", "matplotlib", "numpy", "joblib"} & imported
    assert not heavy, "these cost more than a second"
    return result.stdout


@pytest.mark.parametrize("flag", [(), ("-m",), ("--multirun",)])
def test_configuration(flag: tuple[str, ...], tmp_path: Path) -> None:
    values = (
        ("comm=ps",) if not flag else ("comm=ps,mpi", "train.seed=3,4", "optimizer.learning_rate=interval(0.1,0.5)")
    )
    shown = yaml.safe_load(show(*flag, "--cfg", "job", "--resolve", *values, cwd=tmp_path))
    assert shown["comm"]["name"] == "ps"
    if flag:
        assert (shown["train"]["seed"], shown["optimizer"]["learning_rate"]) == (3, 0.1)


def test_shown_configuration_is_resolved(tmp_path: Path) -> None:
    shown = show("--cfg", "job", "--resolve", cwd=tmp_path)
    assert "${" not in shown and "run_dir: outputs/" in shown


@pytest.mark.parametrize("flag", ["--help", "--info=searchpath", "--hydra-help"])
def test_hydra_answers_its_own_flags(flag: str, tmp_path: Path) -> None:
    shown = show(flag, "tracking.uri=sqlite:///x.db", cwd=tmp_path)
    assert shown
    assert "Hydra's version" not in shown
    assert ("--version : Show the version and the commit of parallax_runner" in shown) == ("hydra" in flag)


@pytest.mark.parametrize("arguments", [("comm=ps",), ("-m", "comm=ps,mpi")])
def test_defaults(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert "comm/ps" in show("--info", "defaults", *arguments, cwd=tmp_path)


@pytest.mark.parametrize("arguments", [(), ("-m", "comm=ps,mpi")])
def test_help_tells_of_actions_groups_and_examples(arguments: tuple[str, ...], tmp_path: Path) -> None:
    shown = show("--help", *arguments, cwd=tmp_path)
    for wanted in (
        "action=plan",
        "action=verify",
        "action=sync",
        "action=simulate",
        "comm: auto, hybrid",
        "-m comm=mpi,ps",
        "--help train",
        "--version",
    ):
        assert wanted in shown
    assert "$" not in shown.replace('"$(parallax', "")
    assert "hydra" not in shown.partition("Groups and their choices")[2].partition("Keys with")[0]
    assert len(shown.splitlines()) < 50, "it is one page"


def test_help_of_a_group_explains_its_choices_and_keys(tmp_path: Path) -> None:
    shown = show("--help", "train", "train=debug", "train.seed=7", cwd=tmp_path)
    assert "train=debug (chosen)\n    Trains for a few steps and reports each of them.\n" in shown
    assert "\ntrain.seed=7\n    an integer, at least 0. seed of initial values" in shown
    assert "\ntrain.hang_timeout_secs=60.0\n    a number, at least 2; in seconds. a process" in shown
    assert "ckpt" not in shown


def test_help_of_all_keys_knows_each_key_of_the_schema_and_of_the_choices(tmp_path: Path) -> None:
    shown = show("--help", "all", "model=simple", cwd=tmp_path)
    keys = [line.partition("=")[0] for line in shown.splitlines() if line[:1] not in ("", " ")]
    typed = [f"{group}.{key.name}" for group in ("comm", "cluster") for key in keys_of_group(group, [""])]
    assert set(keys) >= {"action", "sweep.fail_fast", "comm.ps.staleness", "data.batch_size", "optimizer.learning_rate"}
    assert len(typed) > 20 and set(keys) >= set(typed)


def test_help_resolved(tmp_path: Path) -> None:
    assert f"run_dir={tmp_path}/outputs/" in show("--help", "run_dir", "--resolve", cwd=tmp_path)


def test_help_of_no_key_names_the_nearest(tmp_path: Path) -> None:
    refused = answer("--help", "trian", cwd=tmp_path)
    assert (refused.returncode, refused.stderr) == (
        2,
        "parallax_runner: --help trian (command line): there is no such group or key. Did you mean --help train?\n",
    )


def test_version(tmp_path: Path) -> None:
    assert show("--version", cwd=tmp_path) == f"{program()}\n"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with `parallax`, as an installation makes it, and `python` on PATH."""
    folder = tmp_path_factory.mktemp("bin")
    program = f"#!{sys.executable}\nimport sys\nfrom parallax_runner.__main__ import command\nsys.exit(command())\n"
    (folder / "parallax").write_text(program)
    (folder / "parallax").chmod(0o755)
    return {**os.environ, "PATH": os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])}


def complete(shell: str, program: str, commands: dict[str, str], cwd: Path) -> list[str]:
    result = subprocess.run(
        [shell, "-c", program], cwd=cwd, env=commands, capture_output=True, text=True, timeout=60, check=True
    )
    return result.stdout.splitlines()


BASH = """
eval "$(python -m parallax_runner --shell-completion install=bash)" || exit 1
COMP_LINE={line!r} COMP_POINT={point} COMP_WORDBREAKS={breaks!r}
COMP_WORDS=($COMP_LINE) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_parallax_runner
echo "${{COMPREPLY[@]}}"
complete -p parallax python
"""


@pytest.mark.parametrize(
    ("line", "breaks", "expected"),
    [
        ("python -m parallax_runner comm=", "=", "auto hybrid local mpi ps sharded"),
        ("python -m parallax_runner comm=", " ", "comm=auto comm=hybrid comm=local comm=mpi comm=ps comm=sharded"),
        ("python3 -m parallax_runner -m comm=mpi train.see", "=", "train.seed="),
        ("parallax -m comm=mpi train.see", "=", "train.seed="),
        ("python -m another comm=", "=", ""),
    ],
)
def test_completion_in_bash(line: str, breaks: str, expected: str, commands: dict[str, str], tmp_path: Path) -> None:
    words, *rules = complete("bash", BASH.format(line=line, point=len(line), breaks=breaks), commands, tmp_path)[-3:]
    assert words == expected
    assert ["-F _parallax_runner parallax" in rules[0], "-F _parallax_runner python" in rules[1]] == [True, True]


# zsh calls the function with these variables; compadd takes the candidates.
ZSH = """
compdef() {{ echo compdef $@ }}
eval "$(python -m parallax_runner --shell-completion install=zsh)" || exit 1
compadd() {{ echo ${{@[4,-1]}} }}
_default() {{ echo default }}
words=({line}) CURRENT=${{#words}} PREFIX=${{words[-1]}}
_parallax_runner
"""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -m parallax_runner comm=", "comm=auto comm=hybrid comm=local comm=mpi comm=ps comm=sharded"),
        ("parallax -m comm=mpi train.see", "train.seed="),
        ("python -m another comm=", "default"),
    ],
)
def test_completion_in_zsh(line: str, expected: str, commands: dict[str, str], tmp_path: Path) -> None:
    rule, words = complete("zsh", ZSH.format(line=line), commands, tmp_path)
    assert (rule, words) == ("compdef _parallax_runner parallax python python3", expected)


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "python -m parallax_runner comm=",
            ["comm=auto", "comm=hybrid", "comm=local", "comm=mpi", "comm=ps", "comm=sharded"],
        ),
        ("parallax -m comm=mpi train.see", ["train.seed="]),
    ],
)
def test_completion_in_fish(line: str, expected: list[str], commands: dict[str, str], tmp_path: Path) -> None:
    program = f"python -m parallax_runner --shell-completion install=fish | source; complete -C {line!r}"
    assert "".join(complete("fish", program, commands, tmp_path)).split() == expected
