"""What is wrong is told before anything is started: one message, status 2."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

import parallax_runner as parallax
from parallax_runner.api import scripts_without_driver


def graph_of_a_script() -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        weights = tf.get_variable("weights", [2])
        tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(weights * weights))
    return graph


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Calls parallel_run in an empty folder, and returns what is said to the user."""
    monkeypatch.chdir(tmp_path)
    # Which is no file where pytest runs in several processes.
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "train.py"), raising=False)

    def call(resource_info: Any = None, *, sync: bool = True, graph: Any = None, **options: Any) -> str:
        config = parallax.Config(tracking=False, run_dir="out")
        for name, value in options.items():
            setattr(config, name, value)
        with pytest.raises(SystemExit) as end:
            parallax.parallel_run(graph or graph_of_a_script(), resource_info, sync, config)
        told = capfd.readouterr().err
        assert end.value.code == 2, told
        assert "Traceback" not in told and not list(tmp_path.glob("out/logs/worker*"))
        return told

    return call


def test_asynchrony_without_servers(refused: Any) -> None:
    for option in ("MPI", "HYBRID", None):
        assert "comm.sync=false (parallel_run): asynchronous training needs the servers of comm=ps" in refused(
            run_option=option, sync=False
        )


def test_an_unknown_run_option(refused: Any) -> None:
    assert "run_option='AR' (parallax.Config): expected PS, MPI or HYBRID" in refused(run_option="AR")


def test_a_protocol_that_this_tensorflow_lacks(refused: Any) -> None:
    communication = parallax.CommunicationConfig(parallax.PSConfig(protocol="grpc+gdr"))
    told = refused(run_option="PS", communication_config=communication)
    needed = "this TensorFlow build does not support it; expected one of: grpc"
    assert f"comm.ps.protocol=grpc+gdr (parallel_run): {needed}" in told


@pytest.mark.parametrize(
    "line",
    ["model=lm", "model.path=other.py", "data=stdlib", "+data.extra=1", "++data.batch_size=8", "~data.batch_size"],
)
def test_the_script_has_its_own_model_and_data(line: str, refused: Any) -> None:
    needed = "parallel_run uses the model and the data of the script; remove this override, and change the script"
    assert f"parallax_runner: {line} (parallel_run): {needed}\n" in refused(overrides=[line])


@pytest.mark.parametrize("line", ["optimizer=momentum", "optimizer.learning_rate=0.5", "+optimizer.extra=1"])
def test_the_script_has_its_own_optimizer(line: str, refused: Any) -> None:
    needed = "parallel_run trains the script's graph, which has its own optimizer; remove this setting, and change the"
    assert f"{line} (parallel_run): {needed} optimizer in the script" in refused(overrides=[line])


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("train.accumulate_steps=2", "a script feeds its own batches; accumulate gradients in the script"),
        (
            "train.mixed_precision=bfloat16",
            "a script sets it in the sess_config of parallax.Config: auto_mixed_precision_onednn_bfloat16",
        ),
        (
            "update.global_clip_norm=1",
            "parallel_run trains the script's graph, which has its own optimizer; remove this setting, and change the "
            "optimizer in the script",
        ),
    ],
)
def test_the_script_has_its_own_passes_precision_and_update(line: str, needed: str, refused: Any) -> None:
    assert f"parallax_runner: {line} (parallel_run): {needed}" in refused(overrides=[line])


def test_lines_of_hosts(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# mine\nlocalhost: 0,x\n")
    assert f"{tmp_path}/hosts:2: id 'x' in «0,x»" in refused("hosts")
    assert "resource_info:1: id 0 occurs twice" in refused(["localhost: 0,0"])
    assert "cannot read the hosts of the run: No such file" in refused("nowhere")


def test_both_profile_options(refused: Any) -> None:
    both = parallax.ProfileConfig(profile_steps=[1], profile_range=(1, 2))
    assert "profile_steps and profile_range (parallax.ProfileConfig): set only one of the two" in refused(
        profile_config=both
    )
    told = refused(profile_config=parallax.ProfileConfig(profile_steps=[0]))
    assert "profile.steps=[0] (parallel_run): expected steps of at least 1" in told
    told = refused(profile_config=parallax.ProfileConfig(profile_range=(0, 3)))
    assert "profile.range=[0, 3] (parallel_run): expected a first step of at least 1" in told
    told = refused(profile_config=parallax.ProfileConfig(profile_steps=[1], profile_worker=2))
    assert "profile.worker=2 (parallel_run): expected a rank of at most 1" in told


def test_options_for_mpirun_that_no_shell_can_split(refused: Any) -> None:
    communication = parallax.CommunicationConfig(mpi_config=parallax.MPIConfig(mpirun_options="-x 'A"))
    assert "a shell cannot split these options" in refused(communication_config=communication)


def test_a_graph_that_cannot_be_distributed(refused: Any, capfd: pytest.CaptureFixture[str]) -> None:
    graph = tf.Graph()
    with graph.as_default():
        tf.get_variable("weights", [2])
    with pytest.raises(SystemExit) as end:
        parallax.parallel_run(graph, None, True, parallax.Config(tracking=False, run_dir="out"))
    assert end.value.code == 1
    assert "no gradient was recorded in the graph that was passed to parallel_run" in capfd.readouterr().err


@pytest.mark.parametrize(("task", "status"), [("0", 1), ("1", 0)])
def test_of_several_tasks_of_srun_the_first_one_drives(
    task: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first task says that there is no allocation, and another one says nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "train.py"), raising=False)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("SLURM_PROCID", task)
    monkeypatch.setattr(scripts_without_driver, "leave", sys.exit)  # pytest goes on
    config = parallax.Config(tracking=False, run_dir="out")
    config.overrides = ["cluster=slurm"]
    with pytest.raises(SystemExit) as end:
        parallax.parallel_run(graph_of_a_script(), None, True, config)
    assert end.value.code == status
    told = "".join(capfd.readouterr())
    assert "is not submitted automatically" in told if status else told == "" and list(tmp_path.iterdir()) == []


def test_the_partitioner_s_number() -> None:
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="expected an integer, at least 1"):
            parallax.get_partitioner(wrong)
