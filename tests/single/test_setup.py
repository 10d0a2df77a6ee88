"""The set-up scripts, with a stand-in for uv that notes its calls. test_wheel.py has the wheel."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

UV = """#!/usr/bin/env bash
if [ "$1" = --version ]; then echo "uv {version} (a stand-in)"; exit; fi
echo "$@" >>"{calls}"
case $* in
  venv*) mkdir -p .venv/bin && ln -sf {python} .venv/bin/python && echo home >.venv/pyvenv.cfg ;;
  "pip install"*) touch parallax_runner/launch/libpreloaded.so ;;
  "pip sync"*)
    echo "${{UV_COMPILE_BYTECODE:-}}" >compiles
    rm -rf {horovod}
    case $* in *requirements-horovod.lock*) mkdir -p {horovod} ;; esac
    while [ -e hold ]; do sleep 0.1; done; if [ -e fail-once ]; then rm fail-once; exit 1; fi ;;
esac
"""

HOROVOD = ".venv/lib/python3.11/site-packages/horovod-0.28.1.dist-info"

INSTALLED_FROM = (
    *("pyproject.toml", "requirements.lock", "hatch_build.py"),
    *("parallax_runner/launch/bind_address.c", "parallax_runner/launch/distinct_seeds.c"),
)


class Checkout:
    """A copy of the scripts with tools of its own on PATH."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.bin = folder / "bin"
        self.calls_file = folder / "calls"
        self.bin.mkdir()
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        (self.root / "parallax_runner/launch").mkdir(parents=True)
        for name in INSTALLED_FROM:
            shutil.copy(ROOT / name, self.root / name)
        shutil.copy(ROOT / "requirements-horovod.lock", self.root)
        for tool in [
            "bash",
            "cat",
            "dirname",
            "env",
            "head",
            "ln",
            "mkdir",
            "rm",
            "sha256sum",
            "sleep",
            "sort",
            "touch",
        ]:
            self.link(tool)
        for tool in ("make", "c++"):
            self.script(tool, "#!/bin/sh\n")
        (self.bin / "python3").symlink_to(sys.executable)
        self.uv()

    def link(self, tool: str) -> None:
        found = shutil.which(tool)
        assert found is not None, tool
        (self.bin / tool).symlink_to(found)

    def script(self, name: str, text: str, folder: Path | None = None) -> Path:
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def uv(self, *, version: str = "0.99.0", folder: Path | None = None) -> None:
        text = UV.format(version=version, calls=self.calls_file, python=sys.executable, horovod=HOROVOD)
        self.script("uv", text, folder)

    def start(
        self, *arguments: str, python: str | None = None, script: str = "setup", **variables: str
    ) -> "subprocess.Popen[str]":
        environment = {"PATH": str(self.bin), "HOME": str(self.root)} | variables
        if python is not None:
            environment["PYTHON"] = python
        return subprocess.Popen(
            [self.root / "scripts" / script, *arguments],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, **options: str) -> tuple[int, str]:
        process = self.start(*arguments, **options)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    @property
    def has_horovod(self) -> bool:
        """Whether the last set-up has left Horovod in the environment."""
        return (self.root / HOROVOD).exists()

    def calls(self) -> list[str]:
        """What uv was asked for: the first two words of each call."""
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        return [" ".join(line.split()[:2]) for line in lines]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


EVERYTHING = ["venv --quiet", "pip sync", "pip install"]


def test_first_call_sets_up_and_says_so(checkout: Checkout) -> None:
    status, output = checkout.run()
    assert status == 0, output
    assert checkout.calls() == EVERYTHING
    assert "requirements.lock" in output and "Horovod" not in output and "done in" in output
    calls = checkout.calls_file.read_text()
    assert "--require-hashes" in calls and "--no-deps" in calls and "--editable ." in calls
    assert not checkout.has_horovod


def test_second_call_does_nothing(checkout: Checkout) -> None:
    checkout.run()
    assert checkout.run() == (0, "")
    assert checkout.calls() == EVERYTHING


def test_horovod_is_built_when_it_is_asked_for_and_then_kept(checkout: Checkout) -> None:
    checkout.run()
    status, output = checkout.run("--horovod")
    assert (status, checkout.has_horovod) == (0, True), output
    assert "requirements.lock requirements-horovod.lock; the first time this builds Horovod" in output
    assert checkout.calls() == [*EVERYTHING, "pip sync", "pip install"]
    assert checkout.run() == checkout.run("--horovod") == (0, "")
    with (checkout.root / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert (checkout.run()[0], checkout.has_horovod) == (0, True), "a set-up for another reason"


@pytest.mark.parametrize(
    ("script", "arguments", "built"),
    [
        ("train", ["comm=mpi"], False),
        ("train", ["comm=mpi", "comm.backend=horovod"], True),
        ("train", ["-m", "comm.backend=native,horovod"], True),
        ("train", ["comm.backend=native"], False),
        ("test", ["tests/single"], True),
    ],
)
def test_commands_that_need_horovod_have_it_built(
    checkout: Checkout, script: str, arguments: list[str], built: bool
) -> None:
    checkout.run(*arguments, script=script)  # what it starts then is not in this copy
    assert checkout.has_horovod == built


def test_gpus_need_horovod(checkout: Checkout) -> None:
    shutil.copy(ROOT / "requirements-gpu.lock", checkout.root)
    assert (checkout.run(PARALLAX_EXTRA="gpu")[0], checkout.has_horovod) == (0, True)
    assert "requirements-gpu.lock requirements-horovod.lock" in checkout.calls_file.read_text()


def test_a_set_up_that_has_waited_keeps_the_horovod_of_the_other(checkout: Checkout) -> None:
    hold = checkout.root / "hold"
    hold.touch()
    try:
        first = checkout.start("--horovod")
        wait_for(lambda: (checkout.root / ".venv/bin/python").exists())  # it holds the lock
        second = checkout.start()
        assert second.stdout is not None
        assert "waiting" in second.stdout.readline()
    finally:
        hold.unlink()
    assert [process.communicate(timeout=300)[0] for process in (first, second)][1] == ""
    assert (checkout.calls(), checkout.has_horovod) == (EVERYTHING, True)


@pytest.mark.parametrize(("variables", "compiles"), [({}, ""), ({"PYTHONDONTWRITEBYTECODE": "1"}, "1")])
def test_bytecode_is_compiled_at_once_only_if_python_would_not_keep_it(
    checkout: Checkout, variables: dict[str, str], compiles: str
) -> None:
    checkout.run(**variables)
    assert (checkout.root / "compiles").read_text() == f"{compiles}\n"


@pytest.mark.parametrize("name", INSTALLED_FROM)
def test_changed_dependencies_are_installed(checkout: Checkout, name: str) -> None:
    checkout.run()
    with (checkout.root / name).open("a") as file:
        file.write("# changed\n")
    assert checkout.run()[0] == 0
    assert checkout.calls() == [*EVERYTHING, "pip sync", "pip install"]


def test_a_library_that_was_deleted_is_compiled_again(checkout: Checkout) -> None:
    checkout.run()
    (checkout.root / "parallax_runner/launch/libpreloaded.so").unlink()
    assert checkout.run()[0] == 0
    assert checkout.calls() == [*EVERYTHING, "pip sync", "pip install"]


def test_interrupted_setup_is_repaired(checkout: Checkout) -> None:
    (checkout.root / "fail-once").touch()
    status, output = checkout.run()
    assert status == 1 and "could not be installed" in output
    assert checkout.run()[0] == 0
    assert checkout.calls() == ["venv --quiet", "pip sync", "pip sync", "pip install"]


def test_broken_environment_is_made_anew(checkout: Checkout) -> None:
    checkout.run()
    (checkout.root / ".venv/bin/python").unlink()
    (checkout.root / ".venv/bin/python").symlink_to("/no/such/python")
    assert checkout.run()[0] == 0
    assert checkout.calls() == EVERYTHING * 2


def wait_for(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_two_calls_at_once(checkout: Checkout) -> None:
    hold = checkout.root / "hold"
    hold.touch()
    try:
        first = checkout.start()
        wait_for(checkout.calls)  # it holds the lock
        second = checkout.start()
        assert second.stdout is not None
        assert "waiting" in second.stdout.readline()
    finally:
        hold.unlink()
    outputs = [process.communicate(timeout=300)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert checkout.calls() == EVERYTHING, "the second has nothing left to do"


def test_moved_checkout_is_set_up_again(checkout: Checkout) -> None:
    checkout.run()
    checkout.root = checkout.root.rename(checkout.root.with_name("elsewhere"))
    assert checkout.run()[0] == 0
    assert checkout.calls() == [*EVERYTHING, "pip sync", "pip install"]


def test_an_old_uv_is_passed_over(checkout: Checkout) -> None:
    checkout.uv(version="0.4.30")
    checkout.uv(folder=checkout.root / ".tools/uv/bin")
    assert checkout.run()[0] == 0
    assert checkout.calls() == EVERYTHING


def one_sentence(result: tuple[int, str]) -> str:
    status, output = result
    assert status == 1
    (line,) = output.splitlines()
    assert line.startswith("setup: ") and line.endswith(".")
    return line


@pytest.mark.parametrize("script", ["setup", "train", "test"])
def test_missing_compiler(checkout: Checkout, script: str) -> None:
    (checkout.bin / "c++").unlink()
    assert "a C++ compiler is missing" in one_sentence(checkout.run(script=script))
    assert checkout.calls() == []


def test_missing_make(checkout: Checkout) -> None:
    (checkout.bin / "make").unlink()
    assert "make is missing, which builds Horovod" in one_sentence(checkout.run("--horovod"))
    assert checkout.run()[0] == 0


def old_python(checkout: Checkout, name: str) -> Path:
    """A Python that says that it is 3.10."""
    return checkout.script(name, "#!/bin/sh\necho 3.10\n")


def test_python_out_of_range(checkout: Checkout) -> None:
    path = old_python(checkout, "python3.10")
    line = one_sentence(checkout.run(python=str(path)))
    assert "is Python 3.10, but Python 3.11, 3.12 or 3.13 is needed" in line
    checkout.run()
    assert "3.10" in one_sentence(checkout.run(python=str(path))), "also with an environment in place"
    assert "does not run" in one_sentence(checkout.run(python="/no/such/python"))


def test_no_python_in_range(checkout: Checkout) -> None:
    (checkout.bin / "python3").unlink()
    old_python(checkout, "python3")
    assert "no Python 3.11, 3.12 or 3.13 was found" in one_sentence(checkout.run())
    (checkout.bin / "python3.12").symlink_to(sys.executable)
    assert checkout.run()[0] == 0


def test_another_python_of_the_same_version_makes_the_environment_anew(checkout: Checkout) -> None:
    assert checkout.run()[0] == 0
    told = 'case "$2" in *base_prefix*) echo 3.11 /elsewhere; exit ;; esac'
    other = checkout.script("other", f'#!/bin/sh\n{told}\nexec {sys.executable} "$@"\n')
    assert checkout.run(python=str(other))[0] == 0
    assert checkout.calls() == EVERYTHING * 2
