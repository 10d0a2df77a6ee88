"""Tables that grow need the memory that the plan predicts, with and without rules and deltas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.memory import CONF, watched
from tests.integration.test_large_tables import highest

ROWS = 4_000_000
WORKERS = 2
# The largest and the smallest of the measured peaks that a prediction may have, as parts of it: docs/large-tables.md.
MOST_MEASURED, LEAST_MEASURED = 1.02, 0.7
RULES = ("model.admit={min_count: 2}", "model.evict={unused_steps: 3, every_steps: 2}")
SETTINGS = {
    "plain": ("ckpt.save_steps=4",),
    "deltas": ("ckpt.save_steps=4", "ckpt.delta_steps=3"),
    "rules_and_deltas": ("ckpt.save_steps=4", "ckpt.delta_steps=3", *RULES),
}

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("settings", SETTINGS)
def test_workers_need_what_the_plan_predicts(settings: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    case = [
        f"hydra.searchpath=[{CONF}]",
        "model=large_tables_growing",
        "comm=sharded",
        f"cluster.workers={WORKERS}",
        f"data.cardinalities=[{ROWS}]",
        "data.validation_examples=0",
        "tracking=off",
        "train.steps=7",
        *SETTINGS[settings],
    ]
    measured = highest(watched(run_dir, case))
    memory = json.loads((run_dir / "plan.json").read_text())["memory"]
    predicted = {one["role"]: max(one["start_bytes"], one["step_bytes"], one["save_bytes"]) for one in memory}
    roles = {"driver": "driver", "worker_0": "worker 0", "worker_1": "worker"}
    ratios = {process: measured[process] / predicted[role] for process, role in roles.items()}
    mb = {process: (measured[process] // 10**6, predicted[role] // 10**6) for process, role in roles.items()}
    print(f"{settings}: measured and predicted MB {mb}", flush=True)
    for process, ratio in ratios.items():
        assert LEAST_MEASURED <= ratio <= MOST_MEASURED, (process, mb)
