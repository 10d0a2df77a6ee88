"""Drivers in the style of the original's examples, upgraded as in docs/porting.md, under all run options."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests import forked

ROOT = Path(__file__).parents[2]
PORTING = Path(__file__).parent / "porting"
STEPS = 10
LINE = r"step (\d+) loss (\S+)"


@pytest.fixture(scope="module")
def ported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the drivers after TensorFlow's tool and the remaining manual edits."""
    folder = tmp_path_factory.mktemp("ported")
    tool = [sys.executable, "-m", "tensorflow.tools.compatibility.tf_upgrade_v2_main"]
    trees = ["--intree", str(PORTING / "drivers"), "--outtree", str(folder / "drivers")]
    subprocess.run([*tool, *trees, "--reportfile", str(folder / "report.txt")], check=True, timeout=200)
    for script in (folder / "drivers").glob("*.py"):
        subprocess.run(["sed", "-i", "-f", str(PORTING / "after_upgrade.sed"), str(script)], check=True)
    shutil.copy(PORTING / "replaced.py", folder / "drivers")
    return folder / "drivers"


def train(scripts: Path, driver: str, cwd: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Starts a driver with the data that an earlier test prepared, in forked processes."""
    (cwd / "resource_info").write_text("localhost: 0,1\n")
    data = scripts.parent / f"data_of_{driver}"
    result = subprocess.run(
        [str(forked.STUB), str(scripts / f"{driver}.py"), f"--max_steps={STEPS}", f"--data_dir={data}", *flags],
        cwd=cwd,
        env={**os.environ, **forked.environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    return result


def losses(output: str, behind: str) -> list[float]:
    """Returns the losses that one process has printed, in order; each step once."""
    found = re.findall(f"^{re.escape(behind)}{LINE}", output, re.M)
    assert len(found) == STEPS
    return [float(loss) for _, loss in found]


@pytest.fixture(scope="module")
def on_one_device(ported: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[float]]:
    """Returns a function for the losses of a driver without parallax_runner, in a plain TensorFlow session."""

    def run(driver: str) -> list[float]:
        folder = tmp_path_factory.mktemp("alone")
        for script in ported.glob("*.py"):
            changed = script.read_text().replace("import parallax_runner as parallax", "import one_device as parallax")
            (folder / script.name).write_text(changed)
        shutil.copy(PORTING / "one_device.py", folder)
        return losses(train(folder, driver, folder).stdout, "")

    return run


@pytest.fixture(scope="module")
def cnn_on_one_device(on_one_device: Callable[[str], list[float]]) -> list[float]:
    """The images are the same in each replica, so their mean gradient is that of one device."""
    return on_one_device("cnn")


@pytest.mark.parametrize("run_option", ["MPI", "PS", "HYBRID"])
@pytest.mark.parametrize("driver", ["lm1b", "skip_thoughts", "nmt", "cnn"])
def test_a_driver_trains(
    driver: str, run_option: str, ported: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # The driver itself checks the shapes and tags of its fetches, and that each is a list with one value per replica.
    result = train(ported, driver, tmp_path, f"--run_option={run_option}")
    workers = [0] if run_option == "PS" else [0, 1]  # two replicas, or one each
    for worker in workers:
        seen = losses(result.stdout, f"[worker {worker}] ")
        assert np.isfinite(seen).all()
        if driver == "cnn":
            np.testing.assert_allclose(seen, request.getfixturevalue("cnn_on_one_device"), rtol=1e-4)
        elif driver == "lm1b":  # sampled losses are noisy
            assert np.mean(seen[5:]) < np.mean(seen[:5])
        else:
            assert np.mean(seen[-3:]) < np.mean(seen[:3])
    if driver == "nmt":
        assert re.search(r"^\[worker 0\] translated: (tgt|<)", result.stdout, re.M)
    assert tf.train.load_checkpoint(str(tmp_path / "ckpt")).get_tensor("global_step") == STEPS
    # The run's own lines go only to its logs, although handlers of `tf.app.run` print all log records.
    assert "stages.py" not in result.stderr
    (log,) = tmp_path.glob("outputs/*/*/logs/driver.log")
    assert "still running" not in log.read_text()
