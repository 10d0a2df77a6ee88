"""Real runs in odd environments. They succeed, or one message names the limit or the variable; nothing is left over."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.chaos.conftest import OUTCOME
from tests.chaos.environments import ENVIRONMENTS, NO_UTF8, Environment
from tests.chaos.other_user import FIRST, ROOT, as_user
from tests.integration.runs import LAUNCH_SECS

FIT = """
import keras, numpy, sys
import parallax_runner
if __name__ == "__main__":
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = numpy.zeros([64, 4], "float32")
    parallax_runner.fit(model, x, x[:, :1], workers=2, comm="sharded", batch_size=32, overrides=sys.argv[1:])
"""
# The script itself imports TensorFlow before it calls the project, and TensorFlow may end the process.
BEFORE_FIT = r"pthread_create\(\) failed|bad_alloc|failed to map|Cannot allocate|MemoryError|can't start new thread"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """An empty folder that all users can write."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def run(environment: Environment, words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs Python with `words` in the environment, and checks that all processes end."""
    argv = ["bash", "-c", f'cd "$0" && {environment.shell} && exec "$@"', str(cwd), sys.executable, *words]
    (cwd / "mounts").mkdir()
    command = as_user(FIRST, argv, cwd / "mounts") if environment.is_of_user else argv
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cwd / "cache"), "HOME": str(cwd / "home")}
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, errors="replace", timeout=LAUNCH_SECS
    )
    assert [process for process in psutil.process_iter() if _runs_in(process, cwd)] == []
    return done


def _runs_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return str(folder) in " ".join(process.cmdline())
    except psutil.Error:
        return False


def expect_answer(environment: Environment, done: subprocess.CompletedProcess[str], *, at_start: str = "") -> None:
    """Checks that the run succeeded, or that it failed with one message that names the cause."""
    if done.returncode == 0:
        return
    assert environment.names is not None, done.stderr
    if at_start and "parallax_runner: " not in done.stderr:
        assert re.search(at_start, done.stderr), done.stderr
        return
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert re.search(environment.names, done.stderr), done.stderr


def skip_unless_possible(environment: Environment) -> None:
    if environment.is_of_user and os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    if "localedef" in environment.shell and shutil.which("localedef") is None:
        pytest.skip("needs localedef, to install a locale")


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
def test_a_command(
    environment: Environment,
    lm: tuple[str, ...],
    text: Path,
    open_folder: Path,
    record_property: Callable[[str, object], None],
) -> None:
    skip_unless_possible(environment)
    record_property(OUTCOME, (environment.group, "command"))
    shutil.copy(text, open_folder / "text.txt")
    overrides = [*lm, f"data.path={open_folder}/text.txt", "train.steps=4", f"hydra.run.dir={open_folder}/run"]
    done = run(environment, ["-m", "parallax_runner", *overrides], open_folder)
    expect_answer(environment, done)


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
def test_a_script_that_calls_fit(
    environment: Environment, open_folder: Path, record_property: Callable[[str, object], None]
) -> None:
    skip_unless_possible(environment)
    record_property(OUTCOME, (environment.group, "fit"))
    (open_folder / "train.py").write_text(FIT)
    done = run(
        environment, [f"{open_folder}/train.py", "tracking=off", f"hydra.run.dir={open_folder}/run"], open_folder
    )
    expect_answer(environment, done, at_start=BEFORE_FIT)


def test_a_full_folder_for_temporary_files(
    lm: tuple[str, ...], open_folder: Path, record_property: Callable[[str, object], None]
) -> None:
    """The folder itself can still be made there, but mpirun cannot write into it."""
    record_property(OUTCOME, ("TMPDIR", "full"))
    full = open_folder / "full"
    full.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        subprocess.run(["sh", "-c", 'cat /dev/zero > "$0/filler"', str(full)], capture_output=True)
        environment = Environment("TMPDIR", "full", f"export TMPDIR={full}", r"TMPDIR|No space left")
        overrides = [*lm, "tracking=off", "train.steps=4", f"hydra.run.dir={open_folder}/run"]
        done = run(environment, ["-m", "parallax_runner", *overrides], open_folder)
        expect_answer(environment, done)
        assert [path.name for path in full.iterdir()] == ["filler"]
    finally:
        subprocess.run(["umount", "--lazy", str(full)], check=True)


PLAN = ["-m", "parallax_runner", "model=simple", "action=plan", "hydra.run.dir=run"]


def test_little_memory_is_named(open_folder: Path) -> None:
    """TensorFlow's libraries do not fit, so this takes only a few seconds."""
    done = run(Environment("memory", "few", "ulimit -v 1000000"), PLAN, open_folder)
    assert done.returncode == 1
    expected = r"parallax_runner: .*; address space .* 1000000 KiB \(ulimit -v\); raise this limit\n"
    assert re.fullmatch(expected, done.stderr), done.stderr


def test_a_locale_without_the_letters_is_named(open_folder: Path) -> None:
    environment = Environment("locale", "ASCII", NO_UTF8)
    done = run(environment, [*PLAN, "tracking.run_name=übung"], open_folder)
    assert done.returncode == 2
    assert "tracking.run_name=" in done.stderr and "set LC_ALL=C.UTF-8" in done.stderr
    assert "not valid UTF-8" not in done.stderr
