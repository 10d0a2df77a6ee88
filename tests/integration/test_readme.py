"""Every command in README.md and the pages below runs, in their order (MLflow's server last), in a copy of the project.

Training commands are shortened by SHORTER. The only other change is that `scripts/` and `.venv/` are those of this
checkout. The copy first gets the pages' own model, word for word.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.free_port import pick_free_port
from tests.integration import cluster_page, tables_page

pytestmark = pytest.mark.usefixtures("own_cache")

ROOT = Path(__file__).parents[2]
PAGES = ("index", "concepts", "modes", "models", "data", "sweeps", "checkpoints", "clusters", "profiling", "plan")
DOCUMENTS = (ROOT / "README.md", *(ROOT / "docs" / f"{page}.md" for page in PAGES))
TEXT = "\n".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
BIN = Path(sys.executable).parent

# tests/integration/test_cluster_page.py runs these, with a scheduler or processes beside each other.
TRIED_ELSEWHERE = {command for section in cluster_page.SECTIONS for command in cluster_page.commands(section)}
TRIED_ELSEWHERE |= set(tables_page.commands())  # tests/integration/test_tables.py, with files

# Options appended to a command: those of the first entry whose pattern the command contains.
SMALL = "train.steps=2 data.batch_size=8 data.validation_examples=64"
SHORTER = (
    ("python train.py", ""),
    ("scripts/test", "--collect-only -q tests/single/test_docs.py"),
    ("mlflow ui", ""),
    ("scripts/calibrate", "cluster.workers=2"),
    ("comm=auto", f"{SMALL} data.vocab_size=2000"),
    ("action=simulate", f"{SMALL} data.vocab_size=2000"),
    ("action=plan", ""),
    ("data=text", "action=plan"),
    ("hosts.txt", "action=plan cluster.remote_shell=sh"),
    ("model=simple", SMALL),
    ("experiment=two_tower", SMALL),
    ("profile=steps", f"{SMALL} data.vocab_size=2000 profile.steps=[1,2]"),
    ("profile=range", f"{SMALL} data.vocab_size=2000 profile.range=[1,3]"),
    ("ckpt.resume=", f"{SMALL} data.vocab_size=2000 train.steps=4"),
    ("", f"{SMALL} data.vocab_size=2000"),
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Returns each command once, in the order of first occurrence."""
    lines = [line for block in blocks("sh") for line in block.replace("\\\n", "").splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    return [line for line in dict.fromkeys(found) if line not in TRIED_ELSEWHERE and not needs_files(line)]


def needs_files(command: str) -> bool:
    """Whether tests/integration/test_folds.py or test_every_day_anew.py runs this command, with its files."""
    return "experiment=folds" in command or "data.train=day2.csv" in command


COMMANDS = commands()


def shortened(command: str) -> str:
    more = next(more for pattern, more in SHORTER if pattern in command)
    for folder, place in (("scripts/", ROOT / "scripts"), (".venv/bin/", BIN)):
        command = re.sub(rf"(?<!\S){re.escape(folder)}", f"{place}/", command)
    return f"{command} {more}".strip()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme") / "project"
    folder.mkdir()
    for name in ("parallax_runner", "conf", "models"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (model,) = [block for block in blocks("python") if "def build(" in block]
    (script,) = [block for block in blocks("python") if "parallel_run(" in block]
    (folder / "models" / "bigram.py").write_text(model, encoding="utf-8")
    (folder / "train.py").write_text(script, encoding="utf-8")
    (choice,) = [block for block in blocks("yaml") if "models.bigram" in block]
    (hosts,) = blocks("text")
    (folder / "conf" / "model" / "bigram.yaml").write_text(choice, encoding="utf-8")
    (folder / "hosts.txt").write_text(hosts, encoding="utf-8")
    (folder / "corpus.txt").write_text("the cat sat on the mat , and the dog did not .\n" * 500, encoding="utf-8")
    return folder


def environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PYTEST_"))}
    # In the copy `python -m` finds the copy's modules, since the current folder comes first.
    inherited.pop("PYTHONPATH", None)
    return inherited | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def jobs_of(command: str) -> int:
    """Returns the number of jobs of a sweep: the product of the numbers of values; 1 for another command."""
    swept = [word.partition("=")[2] for word in command.split(" -m ")[-1].split() if "[" not in word]
    return math.prod(len(values.split(",")) for values in swept) if " parallax_runner -m " in command else 1


def runs_of(project: Path) -> set[Path]:
    return set(project.glob("**/summary.json")) - set(project.glob("mlartifacts/**/summary.json"))


@pytest.mark.parametrize("command", [one for one in COMMANDS if not one.startswith("mlflow")])
def test_command(command: str, project: Path) -> None:
    before = runs_of(project)
    done = subprocess.run(
        ["bash", "-c", shortened(command)],
        cwd=project,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
    summaries = [json.loads(path.read_text(encoding="utf-8")) for path in runs_of(project) - before]
    trains = any(word in command for word in ("parallax_runner", "scripts/train", "train.py"))
    assert len(summaries) == (jobs_of(command) if trains else 0)
    assert {summary["status"] for summary in summaries} <= {"finished"}
    goes_on = "ckpt.resume=" in command and "action=" not in command
    if "action=search" in command:
        assert summaries[0]["partition_choice"] >= 1
    elif "train.py" in command:
        assert len(re.findall(r"^\[worker [01]\] loss 0\.\d+$", done.stdout, re.M)) == 2
    elif "action=simulate" in command:
        assert "modelled, not measured" in done.stdout
    elif trains and "action=plan" not in shortened(command):
        assert {summary["steps"] for summary in summaries} == {4 if goes_on else 2}
    if goes_on:
        assert summaries[0]["first_step"] == 2
    if "action=verify" in command:
        assert "every variable matches the result on one device" in done.stdout
    if "model=bigram" in command:
        assert summaries[0]["validation_perplexity"] > 1


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.startswith("mlflow")])
def test_command_that_shows_the_runs_in_mlflow(command: str, project: Path) -> None:
    port = pick_free_port()
    # The other options are the page's advice for a small machine.
    advice = "put `MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false` before the command and `--workers 1` after it"
    assert advice in " ".join(TEXT.split())
    server = subprocess.Popen(
        ["bash", "-c", f"exec {command} --workers 1 --port {port}"],
        cwd=project,
        env=environment() | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        found = ask(f"http://127.0.0.1:{port}/api/2.0/mlflow/experiments/get-by-name?experiment_name=parallax_runner")
        assert found["experiment"]["lifecycle_stage"] == "active"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def ask(address: str, patience_secs: float = 120.0) -> dict:
    """Returns the answer of a server that may still be starting."""
    deadline = time.monotonic() + patience_secs
    while True:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return json.load(answer)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def test_no_command_is_left_out() -> None:
    """The checks above look for words in commands: the words have to be there."""
    for word in [
        "scripts/train",
        "scripts/test",
        "mlflow",
        "action=plan",
        "action=verify",
        "ckpt.resume=",
        "-m",
        "model=bigram",
        "hosts.txt",
        "train.py",
        "profile=range",
        "scripts/calibrate",
        "action=simulate",
        "action=search",
    ]:
        assert any(word in command for command in COMMANDS), word
    assert max(map(jobs_of, COMMANDS)) > 1
