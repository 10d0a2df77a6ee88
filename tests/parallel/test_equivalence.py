"""N ranks leave every variable as one device would: DESIGN.md section 1, by the reference that shares no code."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph.seeds import derive_seeds
from parallax_runner.graph.shard_ids import set_shards
from parallax_runner.verify.compare import Comparison, compare
from parallax_runner.verify.reference import Reference
from tests.parallel.cases import AXES, FAULTY, MATRIX, SEED, STEPS, Case
from tests.parallel.conftest import Launched

TOLERANCE = 1e-8

pytestmark = pytest.mark.timeout(900)


def compared(case: Case, launched: dict[int, Launched]) -> tuple[Comparison, list[float]]:
    """The launch beside the reference, from the same initial values; and the reference's mean losses."""
    single, runs = case.single(), launched[case.ranks]
    initializers = [variable.initializer for variable in single.variables]

    def seeds(graph_def: tf.GraphDef, rank: int) -> tf.GraphDef:
        seeded = derive_seeds(graph_def, seed=SEED, rank=rank, first_step=0, initializers=initializers)
        return set_shards(seeded, num_shards=case.ranks, shard_id=rank)

    replicas = case.ranks * case.replicas
    reference = Reference(single, ranks=replicas, average_sparse=case.average_sparse, seeds=seeds)
    reference.initialize()
    reference.load(runs.arrays(case, "initial"))
    losses = []
    for step in range(STEPS):
        if step == case.spoilt_step:
            losses.append(np.nan)
            continue
        losses.append(float(np.mean(reference.step([case.batch(step, rank) for rank in range(replicas)]))))
    expected = reference.values()
    if case.spoilt_step is not None:
        expected["global_step"] += 1
    reference.close()
    return compare(runs.arrays(case, "final"), expected, tolerance=TOLERANCE), losses


def test_the_matrix_covers_all_pairs() -> None:
    for first, second in itertools.combinations(AXES, 2):
        for pair in itertools.product(AXES[first], AXES[second]):
            assert any((getattr(case, first), getattr(case, second)) == pair for case in MATRIX), (first, second, pair)


@pytest.mark.parametrize("case", MATRIX, ids=lambda case: case.name)
def test_equals_one_device(case: Case, launched: dict[int, Launched]) -> None:
    comparison, losses = compared(case, launched)
    assert comparison.ok, (comparison.first_difference, comparison.missing, comparison.unexpected)
    by_rank = [launched[case.ranks].arrays(case, "losses", rank)["losses"] for rank in range(case.ranks)]
    np.testing.assert_allclose(np.mean(by_rank, axis=0), losses, rtol=1e-8)


@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case.name)
def test_finds_injected_fault(case: Case, launched: dict[int, Launched]) -> None:
    comparison, _ = compared(case, launched)
    assert comparison.first_difference is not None
    assert comparison.max_relative > 1000 * TOLERANCE


@pytest.mark.parametrize("case", MATRIX, ids=lambda case: case.name)
def test_ranks_agree(case: Case, launched: dict[int, Launched]) -> None:
    """Initial values, and what each rank keeps a copy of at the end, but for statistics of its own data."""
    runs = launched[case.ranks]
    chief = {what: runs.arrays(case, what) for what in ("initial", "final")}
    for rank in range(1, case.ranks):
        for what in ("initial", "final"):
            own = runs.arrays(case, what, rank)
            assert own
            for name, array in own.items():
                if not name.endswith("moving_mean") or what == "initial":
                    # Under ps nothing keeps the beta powers of other ranks from being ahead; they are the chief's.
                    np.testing.assert_array_equal(array, chief[what][name], err_msg=f"{name} of rank {rank}")


def test_hybrid_runs_sparse_updates_on_servers(launched: dict[int, Launched]) -> None:
    case = next(case for case in MATRIX if case == Case(optimizer="adagrad", partitions=4))
    trace = launched[2].trace(case)
    assert any("table" in label and "ResourceSparseApplyAdagrad(" in label for _, label in trace)
    for device, label in trace:
        name, _, call = label.partition(" = ")
        if "ResourceSparseApply" in call or ("VarHandleOp" in call and ("table" in name or "other" in name)):
            assert "/job:ps/" in device, label
        if "VarHandleOp" in call and ("weights" in name or "bias" in name):
            assert "/job:worker/replica:0/task:0" in device, label
    collectives = [label for _, label in trace if "Horovod" in label.partition(" = ")[2]]
    assert len(collectives) == 1, collectives
    assert "HorovodGroupedAllreduce(" in collectives[0]
    assert not any(word in collectives[0].partition("(")[2] for word in ("table", "other", "Reshape_", "merge"))
    servers = {device for device, label in trace if "ResourceSparseApplyAdagrad(" in label}
    assert len(servers) == 2, "four partitions are spread over both servers"


def test_replicas_push_once_for_all_or_each_its_own(launched: dict[int, Launched]) -> None:
    """local_aggregation: ops of the step, devices, and bytes."""
    once = next(case for case in MATRIX if case.replicas == 2 and case.clip and case.local_aggregation)
    each = dataclasses.replace(once, local_aggregation=False)
    sent, pushes, devices = {}, {}, {}
    for case in (once, each):
        trace = launched[2].trace(case)
        calls = [(device, label.partition(" = ")[2]) for device, label in trace]
        pushes[case] = sum("AccumulatorApplyGradient(" in call for _, call in calls)
        devices[case] = {device for device, call in calls if call.startswith("Tanh(")}
        sent[case] = float(launched[2].arrays(case, "losses")["sent_bytes"])
    assert pushes[each] == 2 * pushes[once] > 0
    assert sent[once] < 0.9 * sent[each]
    for found in devices.values():
        assert sorted(device[-6:] for device in found) == ["/CPU:0", "/CPU:1"] or len(found) == 2


def test_mpi_uses_no_server(launched: dict[int, Launched]) -> None:
    case = next(case for case in MATRIX if case.comm == "mpi" and case.gradients == "both")
    assert not any("/job:ps/" in device for device, _ in launched[case.ranks].trace(case))


def test_ps_uses_no_collective(launched: dict[int, Launched]) -> None:
    case = next(case for case in MATRIX if case.comm == "ps" and case.gradients == "both")
    assert not any("Horovod" in label for _, label in launched[case.ranks].trace(case))
