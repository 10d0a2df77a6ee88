"""Somebody's own environment, with pandas, torch and TensorFlow: a wheel of this project trains there natively, on a
machine without a compiler and without Horovod."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRAIN = (
    *("comm=sharded", "model=simple", "train.steps=4", "cluster.workers=2", "tracking=off", "data.batch_size=8"),
    *("data.validation_examples=64",),
)
# What scripts of the environment and mpirun start.
PROGRAMS = ("sh", "env", "uname", "hostname")


class OwnEnvironment:
    """A virtual environment whose packages come from the registry and one wheel."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self._tools = folder, folder / "env" / "bin", folder / "tools"
        found = subprocess.run([ROOT / "scripts/setup", "--uv"], check=True, capture_output=True, text=True)
        self._uv = found.stdout.strip()
        self._tools.mkdir()
        for name in PROGRAMS:
            if (place := shutil.which(name)) is not None:
                (self._tools / name).symlink_to(place)
        self.uv("venv", "--quiet", "--no-project", "--python", sys.executable, str(folder / "env"))

    def uv(self, *words: str) -> None:
        """Runs uv. It takes wheels also from the folders that the user's settings of pip name."""
        environment = dict(os.environ)
        if folders := environment.get("PIP_FIND_LINKS"):
            environment.setdefault("UV_FIND_LINKS", folders.replace(" ", ","))
        subprocess.run([ROOT / self._uv, *words], cwd=self.folder, env=environment, check=True, timeout=800)

    def install(self, *requirements: str) -> None:
        self.uv("pip", "install", "--quiet", "--python", str(self.bin / "python"), *requirements)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of the environment in an empty folder, with no compiler on PATH and nothing in the cache."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_MCA", "PYTEST_"))}
        for name in ("PYTHONPATH", "VIRTUAL_ENV", "CXX"):
            inherited.pop(name, None)
        place = self.folder / "own"
        place.mkdir(exist_ok=True)
        own = {"PATH": f"{self.bin}{os.pathsep}{self._tools}", "XDG_CACHE_HOME": str(self.folder / "cache")}
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=place,
            env=inherited | own,
            capture_output=True,
            text=True,
            timeout=400,
        )


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> OwnEnvironment:
    folder = tmp_path_factory.mktemp("own")
    made = OwnEnvironment(folder)
    made.uv("build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", str(folder / "dist"), str(ROOT))
    (wheel,) = (folder / "dist").glob("*.whl")
    assert "-py3-none-manylinux_" in wheel.name
    made.install(str(wheel), "pandas", "torch", "tensorflow-cpu==2.21.*")
    return made


def test_it_trains_without_a_compiler_and_without_horovod(own: OwnEnvironment) -> None:
    assert own.run("python", "-c", "import horovod").returncode != 0
    trained = own.run("parallax", *TRAIN, "hydra.run.dir=trained")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert "exchanged by the native exchanges: comm.backend=auto" in trained.stderr
    summary = json.loads((own.folder / "own" / "trained" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 4)
    assert not list((own.folder / "cache").rglob("*.so")), "nothing is compiled"


def test_the_library_loads_beside_pandas_and_torch(own: OwnEnvironment) -> None:
    program = (
        "import pandas, torch; assert torch.ones(2, 2).sum() == 4; "
        "from parallax_runner.collectives.native.ops import native_ops; "
        "print(native_ops().join(lengths_vary=False, may_fuse=False))"
    )
    done = own.run("python", "-c", program)
    assert (done.returncode, done.stdout) == (0, "(0, 1)\n"), done.stderr


def test_another_tensorflow_is_refused_in_one_sentence(own: OwnEnvironment) -> None:
    own.install("tensorflow-cpu==2.20.*")
    refused = own.run("parallax", *TRAIN, "hydra.run.dir=refused")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    last = refused.stderr.splitlines()[-1]
    assert "the native exchanges of this wheel work with TensorFlow 2.21" in last
    assert "but TensorFlow 2.20" in last and "install tensorflow-cpu==2.21" in last
    assert "Traceback" not in refused.stderr
