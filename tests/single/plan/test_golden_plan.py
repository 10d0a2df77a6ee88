"""The plan of a small graph, as a file that people review when it changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from parallax_runner.plan import plan as plans
from tests.single.small_models import assert_golden, captured, clip, planned


def test_plan_hybrid(tmp_path: Path) -> None:
    plan = planned(captured(optimizer="adam", process=clip), "hybrid", partitions=4)
    # The fingerprint covers attributes that TensorFlow's next release may add.
    plans.save(dataclasses.replace(plan, fingerprint="…"), tmp_path / "plan.json")
    assert_golden("plan_hybrid.json", (tmp_path / "plan.json").read_text(encoding="utf-8"))
