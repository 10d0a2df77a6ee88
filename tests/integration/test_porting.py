"""docs/porting.md: a script of TensorFlow 1 and the original, upgraded by TensorFlow's tool, with its import
changed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import tensorflow.compat.v1 as tf

ROOT = Path(__file__).parents[2]
ORIGINAL = Path(__file__).parent / "porting" / "original.py"
OLD, NEW = "import parallax\n", "import parallax_runner as parallax\n"


def test_an_upgraded_script_runs_with_its_import_changed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    tool = [sys.executable, "-m", "tensorflow.tools.compatibility.tf_upgrade_v2_main"]
    report = ["--reportfile", str(tmp_path / "report.txt")]
    subprocess.run([*tool, "--infile", str(ORIGINAL), "--outfile", str(script), *report], check=True, timeout=120)
    upgraded = script.read_text()
    assert "tf.compat.v1.get_variable" in upgraded
    assert upgraded.count(OLD) == 1
    script.write_text(upgraded.replace(OLD, NEW))
    (tmp_path / "resource_info").write_text("localhost: 0,1\n")
    result = subprocess.run(
        [sys.executable, "train.py", "resource_info", "ckpt"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    for worker in (0, 1):
        told = re.findall(
            rf"^\[worker {worker}\] worker {worker} of 2: loss (\S+), words from (.*)$", result.stdout, re.M
        )
        assert len(told) == 20
        assert float(told[-1][0]) < float(told[0][0])
        # Every second number of the data, and none of the other worker's.
        assert {words for _, words in told} == {f"[{worker}, {worker + 2}]", f"[{worker + 4}, {worker + 6}]"}
    # Draws after the graph was built differ between workers, although all have built it with the same draws.
    drawn = re.findall(r"^\[worker \d\] draws (\d+)$", result.stdout, re.M)
    assert len(set(drawn)) == 2
    shapes = tf.train.load_checkpoint(str(tmp_path / "ckpt")).get_variable_to_shape_map()
    assert shapes["embedding/table"] == [20, 4]
