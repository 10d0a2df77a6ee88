"""The set-up scripts, with a stand-in for uv that notes its calls; and the wheel, built and installed for good."""

import os
import shutil
import site
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallax_runner import __version__

ROOT = Path(__file__).resolve().parents[2]

UV = """#!/usr/bin/env bash
if [ "$1" = --version ]; then echo "uv {version} (a stand-in)"; exit; fi
echo "$@" >>"{calls}"
case $* in
  venv*) mkdir -p .venv/bin && ln -sf {python} .venv/bin/python && echo home >.venv/pyvenv.cfg ;;
  "pip install"*) touch parallax_runner/launch/libpreloaded.so ;;
  "pip sync"*) while [ -e hold ]; do sleep 0.1; done; if [ -e fail-once ]; then rm fail-once; exit 1; fi ;;
esac
"""

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
        text = UV.format(version=version, calls=self.calls_file, python=sys.executable)
        self.script("uv", text, folder)

    def start(self, *, python: str | None = None, script: str = "setup") -> "subprocess.Popen[str]":
        environment = {"PATH": str(self.bin), "HOME": str(self.root)}
        if python is not None:
            environment["PYTHON"] = python
        return subprocess.Popen(
            [self.root / "scripts" / script],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, **options: str) -> tuple[int, str]:
        process = self.start(**options)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

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
    assert "requirements.lock" in output and "3 minutes" in output and "done in" in output
    calls = checkout.calls_file.read_text()
    assert "--require-hashes" in calls and "--no-deps" in calls and "--editable ." in calls


def test_second_call_does_nothing(checkout: Checkout) -> None:
    checkout.run()
    assert checkout.run() == (0, "")
    assert checkout.calls() == EVERYTHING


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


def test_two_calls_at_once(checkout: Checkout) -> None:
    hold = checkout.root / "hold"
    hold.touch()
    try:
        first = checkout.start()
        deadline = time.monotonic() + 300
        while not checkout.calls():  # it holds the lock
            assert time.monotonic() < deadline
            time.sleep(0.05)
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
    assert "make is missing" in one_sentence(checkout.run())


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


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which a wheel of this checkout is installed; what it depends on is this environment's."""
    folder = tmp_path_factory.mktemp("wheel")
    library = ROOT / "parallax_runner/launch/libpreloaded.so"
    before = library.stat() if library.exists() else None
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = (folder / "dist").glob("*.whl")
    # The checkout may be read-only, or at work.
    after = library.stat() if library.exists() else None
    assert (before and (before.st_ino, before.st_mtime_ns)) == (after and (after.st_ino, after.st_mtime_ns))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True, timeout=120)
    uv = subprocess.run([ROOT / "scripts/setup", "--uv"], check=True, capture_output=True, text=True, timeout=120)
    install = [uv.stdout.strip(), "pip", "install", "--quiet", "--no-deps", "--python", folder / "env/bin/python"]
    subprocess.run([*install, wheel], cwd=ROOT, check=True, timeout=120)
    # A path in a .pth file; the .pth files there, of which one has the checkout, do not count then.
    (site_packages(folder / "env") / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "env"


def site_packages(environment: Path) -> Path:
    (folder,) = environment.glob("lib/python*/site-packages")
    return folder


def run_installed(installed: Path, *command: str, cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
    path = [str(installed / "bin" / command[0]), *command[1:]]
    return subprocess.run(path, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def test_wheel_brings_its_configuration_and_models(installed: Path, tmp_path: Path) -> None:
    program = (
        "import parallax_runner, parallax_runner.config.location as location\n"
        "print(parallax_runner.__file__, location.conf_dir(), location.models_dir(), sep='\\n')"
    )
    places = run_installed(installed, "python", "-c", program, cwd=tmp_path)
    package = site_packages(installed) / "parallax_runner"
    assert places.stdout.splitlines() == [
        *(str(package / "__init__.py"), str(package / "conf"), str(package / "models")),
    ], places.stderr
    words = ("-m", "parallax_runner", "--cfg", "job", "experiment=quick")
    shown = run_installed(installed, "python", *words, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "name: hybrid" in shown.stdout
    loaded = "import ctypes; ctypes.CDLL(None).parallax_bind_towards"
    preload = str(package / "launch/libpreloaded.so")
    assert run_installed(installed, "python", "-c", loaded, cwd=tmp_path, LD_PRELOAD=preload).returncode == 0


def test_wheel_puts_nothing_beside_its_package(installed: Path) -> None:
    made = {path.name for path in site_packages(installed).iterdir()} - {"dependencies.pth", "__pycache__"}
    others = {name for name in made if not name.startswith(("parallax_runner", "_virtualenv"))}
    assert (others, "parallax_runner" in made) == (set(), True)


def test_installed_command_says_its_version(installed: Path, tmp_path: Path) -> None:
    said = run_installed(installed, "parallax", "--version", cwd=tmp_path)
    assert (said.returncode, said.stdout, said.stderr) == (0, f"parallax_runner {__version__}\n", "")


def test_installed_command_plans_with_its_own_models_and_with_those_beside_them(
    installed: Path, tmp_path: Path
) -> None:
    planned = run_installed(installed, "parallax", "action=plan", "model=simple", "tracking=off", cwd=tmp_path)
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert "allreduce" in planned.stderr
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.py").write_text("from models.simple import build\n")
    words = ("action=plan", "model=simple", "model._target_=models.mine.build", "tracking=off")
    planned = run_installed(installed, "parallax", *words, cwd=tmp_path)
    assert planned.returncode == 0, planned.stdout + planned.stderr


def test_wheel_has_its_license(installed: Path) -> None:
    (metadata,) = site_packages(installed).glob("parallax_runner-*.dist-info")
    assert "License-Expression: Apache-2.0\n" in (metadata / "METADATA").read_text()
    assert (metadata / "licenses/LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_without_a_compiler_no_wheel_is_built(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "a C++ compiler is missing: install one" in done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.glob("*.whl"))


def test_wheel_has_every_file(installed: Path) -> None:
    for folder in ("conf", "models"):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix in (".yaml", ".py")]
        assert len(files) >= 3
        for path in files:
            assert (site_packages(installed) / "parallax_runner" / path.relative_to(ROOT)).is_file()
