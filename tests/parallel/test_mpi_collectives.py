"""parallax_runner.mpi_collectives under a real mpirun: the results of each rank of tests/parallel/mpi_script.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.launch.job import thread_environment
from parallax_runner.launch.mpirun.command import ALLOW_ROOT, SHARE_CORES, YIELD_WHEN_IDLE, find_mpirun
from tests.conftest import SLEEPS_WHILE_IT_WAITS
from tests.parallel.mpi_script import BATCH, OPTIMIZERS, STEPS, batch, build_model

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("mpi_script.py")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", params=(2, 3), ids=("2_ranks", "3_ranks"))
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of each rank, in rank order; started and waiting as a user's script would."""
    folder = tmp_path_factory.mktemp("mpi_script")
    inherited = {name: value for name, value in os.environ.items() if name not in SLEEPS_WHILE_IT_WAITS}
    env = inherited | thread_environment(1) | ALLOW_ROOT | {"PYTHONPATH": str(ROOT)}
    command = [find_mpirun(), "-np", str(request.param), *YIELD_WHEN_IDLE, *SHARE_CORES, sys.executable, str(SCRIPT)]
    result = subprocess.run(
        [*command, str(folder)], env=env, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(request.param)]


def rows_of(numbers: range) -> list[list[int]]:
    """Returns the rows that the case `dtypes` gathers: [rank, 1], repeated once more than the rank's number."""
    return [[rank, 1] for rank in numbers for _ in range(rank + 1)]


def test_a_graph_is_built_before_init_and_init_is_an_op(ranks: list) -> None:
    count = len(ranks)
    for number, rank in enumerate(ranks):
        case = rank["before_init"]
        assert sorted(case["early"]) == ["local_rank", "rank", "rows", "size", "sum"]
        for error in case["early"].values():
            assert error.startswith("FailedPreconditionError")
            assert "not been initialized" in error
        assert case["from_mpirun"] == [number, count]
        after = {"rank": number, "size": count, "local_rank": number, "sum": count, "rows": [1.0] * count}
        assert case["after"] == after


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_dtypes(ranks: list, dtype: str) -> None:
    count = len(ranks)
    total = [count * (count + 1) // 2, 6 * count]
    rows = rows_of(range(count))
    divide = np.floor_divide if dtype.startswith("int") else np.divide
    expected = [total, divide(total, count), rows, divide(rows, count)]
    for rank in ranks:
        *found, (_, indices) = rank["dtypes"][dtype]
        assert [kind for kind, _ in found] == [dtype] * 4
        for (_, array), wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(array, wanted, rtol=2e-3 if dtype == "float16" else 1e-6)
        assert indices == [row for number in range(count) for row in range(number + 1)]


def test_the_mean_of_integers_is_rounded_down(ranks: list) -> None:
    total = sum(range(len(ranks)))
    expected = [total // len(ranks), -total // len(ranks)]
    assert all(rank["integers"] == [expected, expected] for rank in ranks)


def test_shapes(ranks: list) -> None:
    count = len(ranks)
    total = count * (count + 1) // 2
    cube = np.arange(24.0).reshape(2, 3, 4)
    for rank in ranks:
        values = rank["shapes"]["values"]
        np.testing.assert_array_equal(values["cube"], cube * total)
        assert values["scalar"] == sum(2 + number for number in range(count))
        assert values["empty"] == []
        assert values["fed"] == [[sum(range(count))] * 2]
        np.testing.assert_array_equal(values["rows"], np.concatenate([cube * (one + 1) for one in range(count)]))
        assert values["rows_of_the_last_only"] == [[5.0, 5.0]]
        assert values["no_rows"] == []
        assert values["fed_rows"] == [[one, one] for one in range(count)]
        static = rank["shapes"]["static"]
        assert (static["cube"], static["fed"], static["rows"]) == ("(2, 3, 4)", "(?, 2)", "(?, 3, 4)")


def test_variables_of_both_kinds_and_numbers(ranks: list) -> None:
    mean = sum(range(len(ranks))) / len(ranks)
    for rank in ranks:
        values = rank["variables"]["values"]
        assert values["resource"] == pytest.approx([1 + mean, 2])
        assert values["reference"] == pytest.approx([3 + mean, 4])
        assert values["number"] == pytest.approx(1.5)
        assert values["rows"] == [value for number in range(len(ranks)) for value in (1.0 + number, 2.0)]


def test_indexed_slices_are_two_allgathers(ranks: list) -> None:
    count = len(ranks)
    indices = [row for number in range(count) for row in range(number + 1)]
    for rank in ranks:
        case = rank["indexed_slices"]
        np.testing.assert_allclose(case["mean"][0], np.full((len(indices), 2), 6 / count))
        np.testing.assert_allclose(case["sum"][0], np.full((len(indices), 2), 6))
        for values in (case["mean"], case["sum"]):
            assert values[1:] == [indices, [9, 2]]
        assert case["ops"] == ["HorovodAllgather"] * 4 + ["HorovodSize"], "two reductions, one of them a mean"


def test_another_tensor_on_each_rank_is_matched_by_the_order_of_creation(ranks: list) -> None:
    count = len(ranks)
    rows = [[float(number)] * 2 for number in range(count) for _ in range(number + 1)]
    turned = [[float(number)] * 2 for number in reversed(range(count)) for _ in range(number + 1)]
    for rank in ranks:
        case = rank["another_tensor_on_each_rank"]
        assert case["values"] == {"rows": rows, "sum": 10.0 * sum(range(count)), "again": turned, "scoped": rows}
        assert case["names"] == ["within/allgather", "allgather", "allreduce", "allgather_1"]


def test_ranks_match_by_a_given_name(ranks: list) -> None:
    assert all(rank["names"] == list(range(len(ranks))) for rank in ranks)


@pytest.mark.parametrize(
    ("case", "tensor", "words"),
    [
        ("shape", "allreduce", "[2]"),
        ("dtype", "allreduce_1", "float64"),
        ("scalar", "allreduce_2", "[1]"),
        ("width", "allgather", "dimension 1 equal to 4"),
        ("depth", "allgather_1", "rank 3"),
        ("kind", "allgather_2", "int64"),
        ("slices", "allgather_3", "dimension 1 equal to 4"),
        ("last", "allreduce_3", "[3]"),
    ],
)
def test_a_mismatch_is_an_error_on_every_rank(ranks: list, case: str, tensor: str, words: str) -> None:
    for rank in ranks:
        error, sums_after = rank["mismatches"][case]
        assert error.startswith("FailedPreconditionError")
        assert "Mismatched" in error
        assert words in error
        assert f"'{tensor}'" in error
        assert sums_after == [len(ranks), 2 * len(ranks)]


def test_a_mismatch_in_a_later_step_leaves_the_steps_around_it_alone(ranks: list) -> None:
    for rank in ranks:
        steps = rank["mismatch_in_a_later_step"]
        for number in (2, 4):
            assert "'allreduce'" in steps.pop(number - (number == 4))
        assert steps == [[len(ranks)] * 2] * 4


def test_refused_while_the_graph_is_built(ranks: list) -> None:
    for rank in ranks:
        case = rank["refusals"]
        for name, tensor, kind in (
            ("allreduce", "flag", "bool"),
            ("bfloat16", "brain", "bfloat16"),
            ("allgather", "word", "string"),
            ("slices", "wave", "complex64"),
        ):
            assert case[name].startswith("CollectiveError")
            assert f"«{tensor}»: its dtype is {kind}, expected one of float16, float32, float64, int32" in case[name]
        assert "«lone»: a scalar has no first dimension" in case["scalar"]
        assert "expected a tensorflow.compat.v1.train.Optimizer, got 'sgd'" in case["keras"]
        # Known only at run time.
        assert "'allgather'" in case["fed_scalar"]


def test_no_gradient_flows_through(ranks: list) -> None:
    for rank in ranks:
        assert rank["gradients"]["allreduce"] == rank["gradients"]["allgather"] == [True]
        assert "No gradients provided" in rank["gradients"]["minimize"]


def test_collectives_of_constants_survive_a_trace_of_one_rank(ranks: list) -> None:
    total = sum(1.0 + number for number in range(len(ranks)))
    assert all(rank["constants"] == [total, 2.0 * len(ranks)] * 5 for rank in ranks)


def test_session(ranks: list) -> None:
    for number, rank in enumerate(ranks):
        assert rank["sessions"] == {
            "rank": number,
            "is_session": True,
            "devices": ["/job:localhost/replica:0/task:0/device:CPU:0"],
            "inter_op": 1,
            "own_threads": True,
            "intra_op": 2,
            "soft_placement": True,
            "given_is_unchanged": 4,
        }


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["resource", "reference"])
def test_distributed_optimizer_equals_one_device(ranks: list, kind: str, name: str) -> None:
    expected = on_one_device(kind, name, len(ranks))
    for rank in ranks:
        found = rank["optimizers"][f"{kind}/{name}"]
        assert sorted(found) == sorted(expected), "names, including those of slots, are the wrapped optimizer's"
        assert found["global_step:0"] == STEPS
        for variable, value in expected.items():
            np.testing.assert_allclose(found[variable], value, rtol=1e-9, atol=1e-12, err_msg=variable)


def on_one_device(kind: str, name: str, ranks: int) -> dict[str, np.ndarray]:
    """Returns all variables of the plain optimizer, on the concatenated batches of all ranks."""
    resource = tf.resource_variables_enabled()
    tf.disable_resource_variables()  # as in the script, for slots
    try:
        with tf.Graph().as_default(), tf.Session() as session:
            feeds, loss = build_model(kind)
            train = OPTIMIZERS[name]().minimize(loss, global_step=tf.train.get_or_create_global_step())
            session.run(tf.global_variables_initializer())
            for number in range(STEPS):
                batches = [batch(rank, number) for rank in range(ranks)]
                joined = {key: np.concatenate([one[key] for one in batches]) for key in feeds}
                assert len(joined["y"]) == ranks * BATCH
                session.run(train, {feeds[key]: joined[key] for key in feeds})
            return session.run({one.name: one for one in tf.global_variables()})
    finally:
        if resource:
            tf.enable_resource_variables()


def test_example_of_the_old_page_equals_one_device(ranks: list) -> None:
    examples = [rank["example"] for rank in ranks]
    assert [example["rank"] for example in examples] == list(range(len(ranks)))
    inputs = np.concatenate([example["batch_inputs"] for example in examples])
    outputs = np.concatenate([example["batch_outputs"] for example in examples])
    with tf.Graph().as_default(), tf.Session() as session:
        weights, bias = (tf.get_variable("WB"[i], initializer=np.float32(examples[0]["initial"][i])) for i in (0, 1))
        x, y = inputs.astype(np.float32), outputs.astype(np.float32)
        # The page's loss is a sum over the batch, and the ranks' mean of it is taken.
        loss = tf.nn.l2_loss(tf.matmul(x, weights) + bias - y) / len(ranks)
        train = tf.train.AdamOptimizer().minimize(loss)
        session.run(tf.global_variables_initializer())
        losses = [session.run([loss, train])[0] for _ in range(10)]
        final = session.run([weights, bias])
    for example in examples:
        assert example["initial"] == examples[0]["initial"]
        np.testing.assert_allclose(example["losses"], losses, rtol=1e-5)
        for found, value in zip(example["final"], final, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)


def test_the_import_brings_no_driver_and_no_worker(ranks: list) -> None:
    for rank in ranks:
        stages = {name.split(".")[1] for name in rank["modules"] if "." in name}
        assert stages <= {"collectives", "errors", "files", "frontdoors", "graph", "mpi_collectives", "rewrite"}
        doors = [name for name in rank["modules"] if name.startswith("parallax_runner.frontdoors.")]
        assert all(name.startswith("parallax_runner.frontdoors.mpi_collectives") for name in doors)
        assert [name for name in rank["modules"] if ".rewrite." in name] == [
            "parallax_runner.rewrite.exchange",
            "parallax_runner.rewrite.exchange.constant_folding",
        ]
