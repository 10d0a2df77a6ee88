"""scripts/bench measures real runs and writes complete results. No speed is asserted: measuring it is the benchmark's
task."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCH_SECS = 600
# Two drivers start seconds apart on a busy machine; only the time in which both train counts.
STEPS = 6000


def bench(*arguments: str, out: Path) -> dict[str, Any]:
    """Runs it like scripts/bench; returns its JSON."""
    kind = arguments[0] if arguments[0] in ("loop", "startup") else "modes"
    argv = [sys.executable, "-m", "benchmarks", *arguments, "--out", str(out)]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=BENCH_SECS, cwd=out.parent)
    assert result.returncode == 0, result.stderr
    assert "paste" in result.stderr
    assert (out / f"{kind}.md").read_text().count("\n|") >= 2
    return json.loads((out / f"{kind}.json").read_text())


def test_modes_beside_the_ideal(lm: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "modes"
    told = bench("--repeats", "1", "--steps", str(STEPS), "--modes", "hybrid", *lm, out=out)
    ideal, hybrid = told["measurements"]
    assert (ideal["mode"], hybrid["mode"]) == ("ideal", "hybrid")
    assert ideal["unit"] == "words/s" and min(ideal["rate"], hybrid["rate"]) > 0
    assert 0 < ideal["overlap"] <= 1
    assert ideal["sent_bytes"] == ideal["predicted"]["bytes"] == 0
    assert 0 < hybrid["sent_bytes"] <= hybrid["predicted"]["bytes"]
    assert told["cores"] and told["cpu"] and told["command"].startswith("scripts/bench")
    assert (out / "modes.png").read_bytes().startswith(b"\x89PNG")
    # The ideal is two processes, and each trained to the end.
    for copy in (0, 1):
        summary = json.loads((out / "runs" / f"0_ideal_{copy}" / "summary.json").read_text())
        assert (summary["comm"], summary["workers"], summary["steps"]) == ("local", 1, STEPS)


def test_cost_of_the_loop(lm: tuple[str, ...], tmp_path: Path) -> None:
    told = bench("loop", "--repeats", "2", "--steps", "10", *lm, out=tmp_path / "loop")
    assert [(len(one["bare_us"]), len(one["loop_us"])) for one in told["measurements"]] == [(2, 2)] * 2
    assert all(us > 0 for one in told["measurements"] for us in (*one["bare_us"], *one["loop_us"]))


def test_stages_of_a_start(lm: tuple[str, ...], tmp_path: Path) -> None:
    told = bench("startup", "--repeats", "1", "--modes", "hybrid", *lm, out=tmp_path / "startup")
    [start] = told["measurements"]["hybrid"]
    assert 0 < start["tensorflow_secs"] < start["first_step_secs"]
    assert start["own_secs"] > 0
    stages = {(row["process"], row["stage"]): row["ends_secs"] for row in start["rows"]}
    for process in ("driver", "worker", "server"):
        assert {"start of Python", "import TensorFlow"} <= {stage for owner, stage in stages if owner == process}
    assert stages["driver", "plan"] < stages["worker", "rewrite"] < stages["worker", "initialize"]
    # All of a rank's stages before its first step end before that step begins, within the delay of the clock and the
    # log.
    assert stages["worker", "initialize"] < start["first_step_secs"] + 1
