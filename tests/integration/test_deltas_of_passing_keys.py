"""Deltas of tables whose keys come and go: between a checkpoint and its delta, rows go to other keys. They are saved by
three workers, then two, then one, and by `fit`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from parallax_runner.checkpoints.checkpoint_files import list_checkpoints, step_of
from parallax_runner.checkpoints.delta_files import Delta, read_delta
from parallax_runner.checkpoints.delta_merge import with_delta
from tests.integration.growing_models import BATCH
from tests.integration.growing_runs import TURNS, Values, ranks, run, values_in, write_conf
from tests.integration.test_fit import run as run_script
from tests.integration.test_growing_resumed import FILES, TABLES, changed_owners
from tests.shared import shared

SCRIPT = Path(__file__).parent / "scripts" / "train_passing.py"
EVERY_STEP = ("ckpt.save_steps=1", "ckpt.keep=50")
DELTAS = ("ckpt.save_steps=8", "ckpt.delta_steps=3", "ckpt.keep=50")
# The last step of each number of ranks, and the checkpoint to which the delta of a step belongs: every eighth step and
# the last one of each run has a checkpoint.
ENDS = (13, 17, 20)
BASES = {12: 8, 15: 13, 18: 17}
# In so many steps, some rows go to other keys. In fewer, keys only lose their rows.
OWNERS_CHANGE_STEPS = 4
FIT_WORKERS = 3
FIT_BASES = {15: 8, 18: 16}

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs that save a checkpoint in each step («full», «fit_full»), and runs of the same steps that save
    deltas («deltas», «fit_deltas»)."""

    def train(folder: Path) -> Path:
        write_conf(folder, FILES)
        for name, settings in (("full", EVERY_STEP), ("deltas", DELTAS)):
            for number, last in zip(TURNS.values(), ENDS, strict=True):
                run(folder, name, *ranks(number), f"train.steps={last}", *settings).expect_success()
            done = run_script(SCRIPT, str(FIT_WORKERS), f"run_dir=fit_{name}", *settings, cwd=folder)
            assert done.returncode == 0, done.stderr
        return folder

    return shared(tmp_path_factory, "deltas_of_passing_keys", train)


def delta_of(folder: Path, name: str, base: int) -> tuple[Path, Delta]:
    """Returns the prefix of a checkpoint, and its delta."""
    prefix = folder / name / "ckpt" / f"model.ckpt-{base}"
    found = read_delta(prefix)
    assert found is not None
    return prefix, found


@pytest.mark.parametrize(
    ("kind", "step", "base"),
    [*(("", *one) for one in BASES.items()), *(("fit_", *one) for one in FIT_BASES.items())],
)
def test_a_checkpoint_with_its_delta_is_the_checkpoint_of_the_step(
    kind: str, step: int, base: int, folder: Path, tmp_path: Path
) -> None:
    """Bit for bit: the maps, rows and dense variables. A delta has no slots, so they are those of its checkpoint."""
    prefix, found = delta_of(folder, f"{kind}deltas", base)
    assert found.step == step
    assert found.examples == step * BATCH
    merged = values_in(with_delta(prefix, found, tmp_path / "merged"))
    wanted, before = values_in(folder / f"{kind}full/ckpt/model.ckpt-{step}"), values_in(prefix)
    for table in TABLES:
        assert wanted[f"{table}/evicted"].sum() > before[f"{table}/evicted"].sum()
    if step - base >= OWNERS_CHANGE_STEPS:
        assert any(changed_owners(before, wanted, table) for table in TABLES)
    expect_same(merged, wanted, slots=before)


def expect_same(found: Values, wanted: Values, *, slots: Values) -> None:
    """Compares all variables. Slots must be those in `slots`."""
    assert found.keys() == wanted.keys()
    is_slot = {name: name.endswith("_accumulator") for name in wanted}
    assert sum(is_slot.values()) == len(TABLES) + len(("dense/kernel", "dense/bias"))
    for name in wanted:
        np.testing.assert_array_equal(found[name], (slots if is_slot[name] else wanted)[name], err_msg=name)


def test_checkpoints_of_both_runs_are_equal(folder: Path) -> None:
    """Deltas change nothing that a run trains."""
    for kind in ("", "fit_"):
        checkpoints = list_checkpoints(folder / f"{kind}deltas/ckpt")
        assert len(checkpoints) >= 3
        for prefix in checkpoints:
            wanted = values_in(folder / f"{kind}full/ckpt/model.ckpt-{step_of(prefix)}")
            expect_same(values_in(prefix), wanted, slots=wanted)


def test_a_served_delta_is_the_served_checkpoint(folder: Path) -> None:
    """Exported, evaluated and predicted."""
    prefix, found = delta_of(folder, "deltas", 13)
    sources = {"delta": f"{prefix}.delta", "full": str(folder / f"full/ckpt/model.ckpt-{found.step}")}
    exported, losses, predicted = {}, {}, {}
    for name, source in sources.items():
        given = (*ranks(2), f"ckpt.resume={source}")
        done = run(folder, f"exported_{name}", "action=export", *given).expect_success()
        assert done.summary["steps"] == found.step
        exported[name] = values_in(done.run_dir / "saved_model/variables/variables")
        done = run(folder, f"evaluated_{name}", "action=evaluate", *given).expect_success()
        losses[name] = done.summary["validation_loss"]
        done = run(folder, f"predicted_{name}", "action=predict", *given).expect_success()
        files = sorted((done.run_dir / "predictions").glob("*.parquet"))
        predicted[name] = pyarrow.parquet.read_table(files)["output"].to_pylist()
    assert exported["delta"].keys() == exported["full"].keys() >= {"items/keys", "items/counts", "users/last_used"}
    for name in exported["full"].keys() - {"_CHECKPOINTABLE_OBJECT_GRAPH"}:
        np.testing.assert_array_equal(exported["delta"][name], exported["full"][name], err_msg=name)
    assert losses["delta"] == losses["full"]
    assert predicted["delta"] == predicted["full"]
