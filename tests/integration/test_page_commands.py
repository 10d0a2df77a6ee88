"""The commands of docs/tracking.md and docs/security.md, which need a tracking server or a namespace of their own, and
the commands of docs/development.md.

Those commands of docs/development.md that take seconds run in a copy of the project. For the others, the scripts run
with programs that only note their arguments. The real programs then read these arguments.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.integration.mlflow_server import MlflowServer
from tests.integration.runs import LAUNCH_SECS, launch

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SMALL = "train.steps=2 data.batch_size=8 data.validation_examples=64 data.vocab_size=2000 tracking=off"


def commands(page: str) -> list[str]:
    """Returns the commands in the page's blocks, a line each."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines()]


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command as its reader does, with the interpreter of the tests as `python`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(DOCS.parent)},
        capture_output=True,
        text=True,
        timeout=LAUNCH_SECS,
        check=False,
    )


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[MlflowServer, MlflowServer]]:
    """Two tracking servers; neither has been started."""
    found = []
    for name in ("journal", "another"):
        (tmp_path / name).mkdir()
        found.append(MlflowServer(tmp_path / name))
    yield found[0], found[1]
    for server in found:
        server.stop()


def steps_of_runs(server: MlflowServer) -> list[list[int]]:
    """Returns the steps of the training loss of each run in the server."""
    client = MlflowClient(server.uri)
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    return [[point.step for point in client.get_metric_history(each.info.run_id, "train/loss")] for each in runs]


def test_a_run_is_sent_later_to_its_server_and_to_another(
    servers: tuple[MlflowServer, MlflowServer], tmp_path: Path
) -> None:
    own, another = servers
    later, elsewhere = commands("tracking")
    arguments = ("model=simple", "comm=local", "train.steps=6", "train.log_every=2", f"tracking.uri={own.uri}")
    done = launch(*arguments, cwd=tmp_path, name="runs/first")
    assert done.expect_success().summary["status"] == "finished"
    for command, server in ((later, own), (elsewhere.replace("http://another", another.uri), another)):
        assert run(command, tmp_path).returncode != 0, "the server does not run"
        server.start()
        sent = run(command, tmp_path)
        assert sent.returncode == 0, sent.stdout + sent.stderr
        assert steps_of_runs(server) == [[1, 2, 4, 6]]


def test_a_run_in_a_network_of_its_own(tmp_path: Path) -> None:
    (command,) = [line for line in commands("security") if line.startswith("unshare")]
    done = run(f"{command} {SMALL} run_dir={tmp_path}/run", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["status"] == "finished"


def commands_of_development() -> list[str]:
    """Returns the commands in the blocks and in the sentences of the page, each once."""
    text = (DOCS / "development.md").read_text(encoding="utf-8")
    sentences = " ".join(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split())
    inline = re.findall(r"`((?:\w+=\w+ )?(?:scripts/[a-z-]+|\.ci/run)(?: [^`]*)?)`", sentences)
    in_blocks = [re.sub(r"\s+#.*", "", line) for line in commands("development")]
    return list(dict.fromkeys([*in_blocks, *inline]))


OF_DEVELOPMENT = commands_of_development()
# These take minutes or need the network, and neither says what it would do. .ci/run runs .ci/run.
TOO_LONG = (".ci/run", "scripts/lock docs")
RUN_HERE = ("UPDATE_GOLDEN=1 scripts/test", "scripts/docs reference")
NOTES_ITS_ARGUMENTS = '#!/bin/sh\nprintf "%s\\n" "$@" >"$(dirname "$0")/arguments"\n'


def in_copy(command: str, copy: Path) -> None:
    """Runs a command of the page in a copy of the project, whose packages are installed already."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    inherited.pop("PYTHONPATH", None)  # the copy's modules count
    done = subprocess.run(
        ["bash", "-c", command], cwd=copy, env=inherited, capture_output=True, text=True, timeout=LAUNCH_SECS
    )
    assert done.returncode == 0, done.stdout + done.stderr


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def copy_scripts(folder: Path) -> Path:
    """Copies scripts/ to a project in this folder. There, scripts/setup does nothing."""
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    write_program(folder / "scripts" / "setup", "#!/bin/sh\n")
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the project, with the packages of this one."""
    folder = copy_scripts(tmp_path / "project")
    for name in ("parallax_runner", "conf", "models", "docs", "benchmarks", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / ".venv").symlink_to(Path(sys.prefix))
    return folder


def test_the_page_has_these_commands() -> None:
    programs = {re.sub(r"^\w+=\w+ ", "", command).split()[0] for command in OF_DEVELOPMENT}
    assert programs == {"scripts/test", "scripts/mutate", "scripts/docs", "scripts/lock", ".ci/run", "python"}
    assert set(TOO_LONG) < set(OF_DEVELOPMENT)
    assert all(any(command.startswith(one) for command in OF_DEVELOPMENT) for one in RUN_HERE)
    for program in programs - {"python"}:
        assert os.access(ROOT / program, os.X_OK), program


@pytest.mark.parametrize("command", [one for one in OF_DEVELOPMENT if one.startswith("UPDATE_GOLDEN")])
def test_the_golden_files_are_written_again(command: str, copy: Path) -> None:
    golden = ROOT / "tests" / "golden"
    expected = {path.name: path.read_text(encoding="utf-8") for path in golden.iterdir()}
    for path in (copy / "tests" / "golden").iterdir():
        path.unlink()
    in_copy(command, copy)
    assert {path.name: path.read_text(encoding="utf-8") for path in (copy / "tests" / "golden").iterdir()} == expected


def test_the_reference_is_written_again(copy: Path) -> None:
    (copy / "docs" / "configuration.md").unlink()
    in_copy("scripts/docs reference", copy)
    assert (copy / "docs" / "configuration.md").read_bytes() == (DOCS / "configuration.md").read_bytes()


# It finds its tests in the records of scripts/mutate --record, which a copy lacks: tests/single/mutation has its test.
OF_RECORDS = "scripts/test --of "


@pytest.mark.parametrize("command", [one for one in OF_DEVELOPMENT if one.startswith("python ")])
def test_modules_know_their_options(command: str) -> None:
    _, _, module, *words = command.split()
    told = subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
    assert {word for word in words if word.startswith("-")} <= set(re.findall(r"--[a-z]+", told.stdout))


@pytest.mark.parametrize(
    "command",
    [
        one
        for one in OF_DEVELOPMENT
        if one.startswith(("scripts/test", "scripts/mutate", "UPDATE_SCREENSHOTS")) and not one.startswith(OF_RECORDS)
    ],
)
def test_the_arguments_are_those_of_pytest_and_of_the_mutation_tests(command: str, tmp_path: Path) -> None:
    folder = copy_scripts(tmp_path / "project")
    write_program(folder / ".venv" / "bin" / "python", NOTES_ITS_ARGUMENTS)
    in_copy(command, folder)
    _, module, *words = (folder / ".venv" / "bin" / "arguments").read_text(encoding="utf-8").splitlines()
    program = re.sub(r"^\w+=\w+ ", "", command).split()[0]
    assert module == {"scripts/test": "pytest", "scripts/mutate": "tests.mutation"}[program]
    assert [word for word in words if word.startswith("tests/") and not (ROOT / word).exists()] == []
    told = subprocess.run(
        [sys.executable, "-m", module, *words, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stdout + told.stderr
    # With --help, neither program refuses an unknown option.
    options = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", told.stdout))
    assert {word for word in words if word.startswith("-")} <= options


@pytest.mark.parametrize(("command", "words"), [("scripts/docs", "build"), ("scripts/docs serve", "serve")])
def test_the_site_is_built_strictly(command: str, words: str, tmp_path: Path) -> None:
    assert command in OF_DEVELOPMENT
    folder = copy_scripts(tmp_path / "project")
    lock = (ROOT / "requirements-docs.lock").read_bytes()
    (folder / "requirements-docs.lock").write_bytes(lock)
    place = folder / ".tools" / "docs"
    write_program(place / "bin" / "mkdocs", NOTES_ITS_ARGUMENTS)
    fingerprint = hashlib.sha256(f"{folder}\n".encode() + lock).hexdigest()
    (place / ".done").write_text(f"{fingerprint}  -\n", encoding="utf-8")
    in_copy(command, folder)
    assert (place / "bin" / "arguments").read_text(encoding="utf-8").split() == [words, "--strict"]
