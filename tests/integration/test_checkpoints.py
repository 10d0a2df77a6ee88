"""Checkpoints are one device's view: any mode resumes those of any other, and TensorFlow opens them."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import damage
from parallax_runner.config.hydra_quotes import quoted
from tests.integration.runs import BATCH_SIZE, SIZE, VOCAB_SIZE, Run, launch

LM_SHAPES = {
    "embedding": [VOCAB_SIZE, SIZE],
    "softmax_w": [VOCAB_SIZE, SIZE],
    "softmax_b": [VOCAB_SIZE],
    "lstm/kernel": [2 * SIZE, 4 * SIZE],
    "lstm/bias": [4 * SIZE],
    "lstm/projection": [SIZE, SIZE],
}
REFUSED_SECS = 120  # TensorFlow's import on a busy machine takes most of it


def variables(path: Path) -> dict[str, np.ndarray]:
    """Returns all variables of a checkpoint, or of the newest in a folder."""
    reader = tf.train.load_checkpoint(str(path))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def files_of(*steps: int) -> set[str]:
    """Returns the file names of the checkpoints of these steps, and of TensorFlow's own list of them."""
    endings = ("index", "data-00000-of-00001", "json")
    return {f"model.ckpt-{step}.{ending}" for step in steps for ending in endings} | {"checkpoint"}


def names(folder: Path) -> set[str]:
    """Returns the names in a folder except for `best.json`."""
    return {path.name for path in folder.iterdir()} - {"best.json", ".lock"}


# --- Contents -----------------------------------------------------------------------------------------------------


def test_the_newest_are_kept(ps_partitioned: Run) -> None:
    assert names(ps_partitioned.ckpt_dir) == files_of(15, 20)
    assert ps_partitioned.summary["ckpt_path"] == str(ps_partitioned.ckpt_dir / "model.ckpt-20")


def test_tensorflow_opens_them_under_the_models_own_names(ps_partitioned: Run) -> None:
    sparse = {
        one["name"]: len(one["shards"]) for one in ps_partitioned.plan["variables"] if one["gradient"] == "sparse"
    }
    assert sparse == {"embedding": 4, "softmax_w": 4, "softmax_b": 4}
    assert tf.train.latest_checkpoint(str(ps_partitioned.ckpt_dir)) == str(ps_partitioned.ckpt_dir / "model.ckpt-20")
    expected = LM_SHAPES | {f"{name}/Adagrad": shape for name, shape in LM_SHAPES.items()} | {"global_step": []}
    for step in (15, 20):
        reader = tf.train.load_checkpoint(str(ps_partitioned.ckpt_dir / f"model.ckpt-{step}"))
        assert reader.get_variable_to_shape_map() == expected
        assert reader.get_tensor("global_step") == step
        # Every piece has been trained: Adagrad's sums of squares have grown in each quarter of the rows.
        grown = reader.get_tensor("embedding/Adagrad").max(axis=1) > 0.1
        assert all(quarter.any() for quarter in np.split(grown, 4))


def test_the_sidecar_knows_the_data_position(ps_partitioned: Run) -> None:
    for step in (15, 20):
        sidecar = ps_partitioned.sidecar(step)
        assert (sidecar["step"], sidecar["examples"], sidecar["seed"]) == (step, step * 2 * BATCH_SIZE, 1)
        assert sidecar["fingerprint"] == ps_partitioned.plan["fingerprint"]
        assert sidecar["mlflow_run_id"] is None


def test_by_seconds(simple_hybrid: Run) -> None:
    assert names(simple_hybrid.ckpt_dir) == files_of(18, 19, 20)


# --- Resuming -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comm", "workers"), [(("comm=mpi",), 2), (("comm=local",), 1), (("comm=hybrid", "cluster.workers=3"), 3)]
)
def test_any_mode_continues_what_ps_wrote(
    ps_partitioned: Run, lm: tuple[str, ...], comm: tuple[str, ...], workers: int, tmp_path: Path
) -> None:
    run = launch(
        *lm, *comm, "train.steps=30", f"ckpt.resume={ps_partitioned.run_dir}", "tracking=off", cwd=tmp_path
    ).expect_success()
    assert (run.summary["first_step"], run.summary["steps"]) == (20, 30)
    assert run.sidecar(30)["examples"] == 20 * 2 * BATCH_SIZE + 10 * workers * BATCH_SIZE
    assert names(run.ckpt_dir) == files_of(30)
    before, after = variables(ps_partitioned.ckpt_dir), variables(run.ckpt_dir)
    assert after["global_step"] == 30
    expect_continued(before, after)


@pytest.fixture(scope="module")
def sharded(ps_partitioned: Run, lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Steps 21 to 30 with rows owned by three ranks, after 20 under ps; saved often."""
    start = (f"ckpt.resume={ps_partitioned.run_dir}", "ckpt.save_secs=0.001", "ckpt.keep=20")
    arguments = (*lm, "comm=sharded", "comm.lookahead=on", "cluster.workers=3", "train.steps=30", "tracking=off")
    return launch(*arguments, *start, cwd=tmp_path_factory.mktemp("sharded")).expect_success()


def test_rows_of_ranks_continue_what_ps_wrote(ps_partitioned: Run, sharded: Run) -> None:
    assert {one["route"] for one in sharded.plan["variables"] if one["gradient"] == "sparse"} == {"alltoall"}
    assert sharded.summary["servers"] == 0
    expect_continued(variables(ps_partitioned.ckpt_dir), variables(sharded.ckpt_dir))
    # The chief's clock alone decides when to save, and all ranks save the same step.
    steps = [step for step in range(21, 31) if (sharded.ckpt_dir / f"model.ckpt-{step}.index").exists()]
    assert len(steps) >= 3
    assert steps[-1] == 30
    sums = [variables(sharded.ckpt_dir / f"model.ckpt-{step}")["embedding/Adagrad"] for step in steps]
    for earlier, later in itertools.pairwise(sums):
        assert np.all(later >= earlier)
        assert all(np.any(later[rank::3] > earlier[rank::3]) for rank in range(3))


def test_any_mode_continues_what_ranks_wrote(sharded: Run, lm: tuple[str, ...], tmp_path: Path) -> None:
    arguments = ("comm=ps", "partition=fixed", "train.steps=35", f"ckpt.resume={sharded.run_dir}", "tracking=off")
    run = launch(*lm, *arguments, cwd=tmp_path).expect_success()
    assert (run.summary["first_step"], run.summary["steps"]) == (30, 35)
    expect_continued(variables(sharded.ckpt_dir), variables(run.ckpt_dir))


def expect_continued(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> None:
    """Checks that Adagrad's sums never shrink, and that rows trained only before the resume are unchanged."""
    for name in LM_SHAPES:
        assert np.all(after[f"{name}/Adagrad"] >= before[f"{name}/Adagrad"])
        assert np.any(after[name] != before[name])
    sums_before, sums_after = before["embedding/Adagrad"], after["embedding/Adagrad"]
    idle = np.all(sums_before == sums_after, axis=1) & np.any(sums_before > 0.1, axis=1)
    assert idle.any()
    np.testing.assert_allclose(after["embedding"][idle], before["embedding"][idle], atol=1e-3)


@pytest.fixture(scope="module")
def resumed(simple_ps: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The linear regression's steps 11 to 20 under mpi, after 10 under ps, with only `ckpt.dir` in common."""
    return launch(
        "model=simple",
        "comm=mpi",
        "train.steps=20",
        "train.log_every=1",
        "tracking=off",
        f"ckpt.dir={simple_ps.ckpt_dir}",
        cwd=tmp_path_factory.mktemp("resumed"),
    ).expect_success()


def test_the_same_folder_continues_by_itself(resumed: Run, simple_ps: Run) -> None:
    assert (resumed.summary["first_step"], resumed.summary["steps"]) == (10, 20)
    assert simple_ps.sidecar(20)["examples"] == 20 * 2 * 32
    assert names(simple_ps.ckpt_dir) == files_of(10, 20)


def test_ten_and_ten_steps_are_twenty(resumed: Run, simple_ps: Run, simple_hybrid: Run) -> None:
    interrupted, whole = variables(simple_ps.ckpt_dir), variables(simple_hybrid.ckpt_dir)
    assert interrupted.keys() == whole.keys() == {"w", "b", "global_step"}
    for name, value in whole.items():
        np.testing.assert_allclose(interrupted[name], value, rtol=0, atol=1e-6)


def test_the_loss_continues(resumed: Run, simple_hybrid: Run) -> None:
    whole, continued = simple_hybrid.losses(), resumed.losses()
    assert set(continued) == set(range(11, 21))
    assert continued == pytest.approx({step: whole[step] for step in continued}, abs=1e-3)
    assert resumed.summary["loss_first"] == pytest.approx(whole[11], abs=1e-3)


def test_never_starts_afresh_beside_old_checkpoints(simple_hybrid: Run, tmp_path: Path) -> None:
    shutil.copytree(simple_hybrid.ckpt_dir, tmp_path / "used")
    run = launch(
        "model=simple",
        "comm=local",
        "train.steps=5",
        "tracking=off",
        f"ckpt.dir={tmp_path / 'used'}",
        "ckpt.resume=never",
        "ckpt.keep=3",
        cwd=tmp_path,
    ).expect_success()
    assert (run.summary["first_step"], run.summary["steps"]) == (0, 5)
    # The newest checkpoint is the last to be deleted, whatever the steps of the older ones.
    assert variables(Path(run.summary["ckpt_path"]))["global_step"] == 5


def test_nothing_left_to_do(simple_hybrid: Run, tmp_path: Path) -> None:
    run = launch(
        "model=simple",
        "comm=local",
        "train.steps=20",
        "tracking=off",
        f"ckpt.resume={simple_hybrid.ckpt_dir / 'model.ckpt-20'}",
        cwd=tmp_path,
    )
    assert "Traceback" not in run.stderr
    run.expect_success()
    assert (run.summary["status"], run.summary["first_step"], run.summary["steps"]) == ("finished", 20, 20)


# --- Damage -------------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(simple_hybrid: Run, tmp_path: Path) -> Path:
    """Checkpoints of steps 18, 19 and 20; the last has one wrong bit."""
    folder = tmp_path / "damaged"
    shutil.copytree(simple_hybrid.ckpt_dir, folder)
    data = folder / "model.ckpt-20.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[3] ^= 16
    data.write_bytes(content)
    return folder


def test_the_one_before_a_damaged_one_is_used(damaged: Path, tmp_path: Path) -> None:
    (damaged / ".partial-21").mkdir()  # left by a run that was killed
    run = launch(
        "model=simple", "comm=local", "train.steps=21", "tracking=off", f"ckpt.dir={damaged}", cwd=tmp_path
    ).expect_success()
    assert (run.summary["first_step"], run.summary["steps"]) == (19, 21)
    (message,) = [line for line in run.stderr.splitlines() if "damaged" in line and line.startswith("parallax_runner")]
    assert "model.ckpt-20.data-00000-of-00001" in message
    assert message.endswith(f"using {damaged / 'model.ckpt-19'} instead")
    assert [path.name for path in damaged.glob(".*")] == [".lock"]


def test_a_damaged_one_that_is_named_is_refused(damaged: Path, tmp_path: Path) -> None:
    prefix = damaged / "model.ckpt-20"
    run = launch("model=simple", "tracking=off", f"ckpt.resume={prefix}", cwd=tmp_path)
    expect_refused(run, f"ckpt.resume={prefix}", f"{prefix.name}.data", f"ckpt.resume={damaged / 'model.ckpt-19'}")


# --- Folder names -------------------------------------------------------------------------------------------------


def test_a_sweep_and_a_resume_in_folders_whose_names_are_patterns(tmp_path: Path) -> None:
    """TensorFlow treats prefixes as patterns, and SQLAlchemy reads options after a question mark."""
    cwd = tmp_path / "a[b] c\\d%20?"
    (tmp_path / "ab cd%20").mkdir()
    swept = ("-m", "model=simple", "comm=local", "ckpt.save_steps=2", "train.steps=4,6", "tracking.log_checkpoints=all")
    run = launch(*swept, f"hydra.sweep.dir={quoted(str(cwd / 'swept[1]'))}", cwd=cwd).expect_success()
    jobs = [cwd / "swept[1]" / f"train.steps-{steps}" for steps in (4, 6)]
    for job in jobs:
        summary = json.loads((job / "summary.json").read_text())
        assert (summary["status"], summary["saved_model_error"]) == ("finished", None)
        sent = (cwd / "mlartifacts" / summary["mlflow_run_id"] / "artifacts" / "checkpoints").iterdir()
        assert {path.name for path in sent} == {f"model.ckpt-{step}" for step in range(2, summary["steps"] + 1, 2)}

    arguments = (f"ckpt.resume={quoted(str(jobs[1]))}", f"ckpt.dir={quoted(str(cwd / 'other*[2]'))}")
    run = launch("model=simple", "comm=mpi", "train.steps=8", "tracking=off", *arguments, cwd=cwd, name="last[3]")
    run.expect_success()
    assert (run.summary["first_step"], run.summary["steps"]) == (6, 8)
    assert run.summary["ckpt_path"] == str(cwd / "other*[2]" / "model.ckpt-8")
    assert damage(cwd / "other*[2]" / "model.ckpt-8") is None


# --- Refusals -----------------------------------------------------------------------------------------------------


def expect_refused(run: Run, *words: str) -> None:
    """Checks that the run printed one message with these words, and started no process."""
    assert run.exit_status != 0
    (message,) = [line for line in run.stderr.splitlines() if line.startswith("parallax_runner: ")]
    assert all(word in message for word in words), message
    assert "Traceback" not in run.stderr
    run.expect_nothing_started()
    assert run.secs < REFUSED_SECS


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    run = launch("model=simple", "tracking=off", f"ckpt.resume={tmp_path / 'nowhere'}", cwd=tmp_path)
    assert run.exit_status == 2
    expect_refused(run, "ckpt.resume", "nowhere")


def test_a_folder_without_checkpoints_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    run = launch("model=simple", "tracking=off", f"ckpt.resume={tmp_path / 'empty'}", cwd=tmp_path)
    expect_refused(run, "ckpt.resume", "empty", "no checkpoint at this path")
    assert run.summary["status"] == "failed"
    assert "no checkpoint at this path" in run.summary["error"]


def test_another_models_checkpoint_is_refused(simple_hybrid: Run, lm: tuple[str, ...], tmp_path: Path) -> None:
    run = launch(*lm, "tracking=off", f"ckpt.resume={simple_hybrid.run_dir}", cwd=tmp_path)
    expect_refused(run, str(simple_hybrid.ckpt_dir / "model.ckpt-20"), "«embedding»", "another model")
