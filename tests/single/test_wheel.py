"""The wheel, built and installed for good."""

import os
import site
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner import __version__

ROOT = Path(__file__).resolve().parents[2]


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
