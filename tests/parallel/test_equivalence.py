"""N ranks leave every variable as one device would: docs/correct-step.md, checked against a reference that shares no
code."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph.seeds import derive_seeds
from parallax_runner.graph.shard_ids import set_shards
from parallax_runner.plan.plan import Route
from parallax_runner.verify.compare import Comparison, compare
from parallax_runner.verify.reference import Reference
from tests.parallel.case_lists.basic import BASIC
from tests.parallel.case_lists.faulty import FAULTS
from tests.parallel.case_lists.pairs import AXES
from tests.parallel.case_models import WIDTH
from tests.parallel.cases import KERAS, SEED, STEPS, Case
from tests.parallel.concatenated import train
from tests.parallel.configured import train_by_hand
from tests.parallel.conftest import Launches
from tests.parallel.matrix import COMPRESSED, EVERY, FAULTY, MATRIX, SHORT, TRACED
from tests.parallel.traced_cases import OF_OWN_BATCH

TOLERANCE = 1e-8
RANKS = 2  # for three ranks see test_equivalence_of_3_ranks.py

pytestmark = pytest.mark.timeout(1800)  # the first tests wait for the launches


def compared(case: Case, launched: Launches) -> tuple[Comparison, list[float]]:
    """Compares the launch with the reference, from the same initial values; also returns the reference's mean
    losses."""
    single, runs = case.single(), launched[case.ranks]
    if case.model == "chained":  # its step never has all gradients at once, which the reference needs
        steps = [[case.batch(step, rank) for rank in range(case.ranks)] for step in range(STEPS)]
        expected, losses = train(case.single(batches=case.ranks), runs.arrays(case, "initial"), steps)
        return compare(runs.arrays(case, "final"), expected, tolerance=TOLERANCE), losses
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
            values = reference.values()
            values["global_step"] += 1  # it counts steps; nothing else changes
            reference.load(values)
            continue
        losses.append(float(np.mean(reference.step([case.batch(step, rank) for rank in range(replicas)]))))
    expected = reference.values()
    reference.close()
    return compare(runs.arrays(case, "final"), expected, tolerance=TOLERANCE), losses


def test_the_matrix_covers_all_pairs() -> None:
    for first, second in itertools.combinations(AXES, 2):
        for pair in itertools.product(AXES[first], AXES[second]):
            assert any((getattr(case, first), getattr(case, second)) == pair for case in MATRIX), (first, second, pair)


def test_the_default_tier_has_each_mode_and_each_kind_of_fault() -> None:
    assert BASIC.issubset(EVERY)
    right = [case for case in BASIC if case.fault is None]
    assert {case.comm for case in right if case.kind == "graph"} == set(AXES["comm"])
    assert {case.comm for case in right if case.kind == "keras"} == set(AXES["comm"])
    assert {case.kind for case in right} == {case.kind for case in EVERY}
    assert {case.fault for case in BASIC} >= {*FAULTS, "rows_before_their_update", "dropped_dependency"}


# Cases that the default tier compares with plain Keras are not compared with the reference there.
BESIDE_KERAS = [case for case in TRACED if case not in BASIC or case.model in OF_OWN_BATCH]


@pytest.mark.cases([*MATRIX, *BESIDE_KERAS])
def test_equals_one_device(case: Case, launched: Launches) -> None:
    comparison, losses = compared(case, launched)
    assert comparison.ok, (comparison.first_difference, comparison.missing, comparison.unexpected)
    by_rank = [launched[case.ranks].arrays(case, "losses", rank)["losses"] for rank in range(case.ranks)]
    np.testing.assert_allclose(np.mean(by_rank, axis=0), losses, rtol=1e-8)


@pytest.mark.cases([case for case in MATRIX if case.optimizer in KERAS and case.replicas == 1])
def test_equals_one_device_that_has_dense_gradients_of_all_batches(case: Case, launched: Launches) -> None:
    """Checks Keras' formulas on merged gradients, including slots."""
    runs = launched[case.ranks]
    steps = [[case.batch(step, rank) for rank in range(case.ranks)] for step in range(STEPS)]
    expected, _ = train(case.single(batches=case.ranks), runs.arrays(case, "initial"), steps)
    assert any(name.startswith(f"{KERAS[case.optimizer].name}/") for name in expected)
    comparison = compare(runs.arrays(case, "final"), expected, tolerance=1e-10)
    assert comparison.ok, (comparison.first_difference, comparison.missing, comparison.unexpected)


CONFIGURED = [case for case in MATRIX if case.model == "configured" and case.replicas == case.user_parts == 1]


@pytest.mark.cases([case for case in CONFIGURED if case.spoilt_step is None])
def test_equals_untouched_tensorflow_that_updates_by_hand(case: Case, launched: Launches) -> None:
    runs = launched[case.ranks]
    steps = [[case.batch(step, rank) for rank in range(case.ranks)] for step in range(STEPS)]
    expected = train_by_hand(case, runs.arrays(case, "initial"), steps)
    comparison = compare(runs.arrays(case, "final"), expected, tolerance=1e-6)  # learning rates are float32
    assert comparison.ok, (comparison.first_difference, comparison.missing, comparison.unexpected)


# The draws and the statistics of several passes are not those of one. A norm of a gradient whose repeated ids are not
# merged, as on one device, differs, too.
IN_PARTS = [
    case
    for case in MATRIX
    if case.model in ("in_2_parts", "in_4_parts")
    and case.average_sparse
    and case.user_parts == 1
    and not case.clip
    and not case.spoilt_step
]


@pytest.mark.cases(IN_PARTS)
def test_several_passes_equal_one_pass_of_one_device_over_all_examples(case: Case, launched: Launches) -> None:
    """The unchanged graph of one pass trains on the concatenated batches of all ranks."""
    runs, replicas = launched[case.ranks], case.ranks * case.replicas
    steps = [[case.batch(step, rank) for rank in range(replicas)] for step in range(STEPS)]
    expected, losses = train(case.whole(batches=replicas), runs.arrays(case, "initial"), steps)
    comparison = compare(runs.arrays(case, "final"), expected, tolerance=TOLERANCE)
    assert comparison.ok, (comparison.first_difference, comparison.missing, comparison.unexpected)
    by_rank = [runs.arrays(case, "losses", rank)["losses"] for rank in range(case.ranks)]
    np.testing.assert_allclose(np.mean(by_rank, axis=0), losses, rtol=1e-8)


WITH_SHORT_PRODUCTS = [
    one
    for one in MATRIX
    if one.model == "short_products" and one.spoilt_step is None and not one.clip and one.optimizer not in KERAS
]


@pytest.mark.cases(WITH_SHORT_PRODUCTS)
def test_short_products_differ_from_one_device_with_all_examples_by_their_rounding(
    case: Case, launched: Launches
) -> None:
    """One device rounds the sum over all examples that a gradient is, where each rank rounds the sum over its own."""
    runs, replicas = launched[case.ranks], case.ranks * case.replicas
    steps = [[case.batch(step, rank) for rank in range(replicas)] for step in range(STEPS)]
    initial, final = runs.arrays(case, "initial"), runs.arrays(case, "final")
    by_rank = [runs.arrays(case, "losses", rank)["losses"] for rank in range(case.ranks)]
    expected, losses = train(case.single(batches=replicas), initial, steps)
    _, exact_losses = train(case.exact(batches=replicas), initial, steps)
    assert compare(final, expected, tolerance=TOLERANCE).max_relative < 2e-2
    np.testing.assert_allclose(np.mean(by_rank, axis=0), losses, rtol=2e-2)
    # In the first step, all start from the same values.
    assert np.mean(by_rank, axis=0)[0] == pytest.approx(losses[0], rel=1e-8)
    assert losses[0] != pytest.approx(exact_losses[0], rel=1e-5)


# A norm over gradients whose repeated ids are not merged, as on one device, is another norm.
OF_ALL_EXAMPLES = [
    one for one in MATRIX if one.uneven and one.average_sparse and one.spoilt_step is None and not one.clip
]


@pytest.mark.cases(OF_ALL_EXAMPLES)
def test_ranks_with_different_numbers_of_examples_equal_one_device_with_all(case: Case, launched: Launches) -> None:
    """The unchanged graph on one device, without a share, trains on all examples of a step at once."""
    runs, replicas = launched[case.ranks], case.ranks * case.replicas
    steps = [[case.batch(step, rank) for rank in range(replicas)] for step in range(STEPS)]
    expected, losses = train(case.single(batches=replicas), runs.arrays(case, "initial"), steps)
    comparison = compare(runs.arrays(case, "final"), expected, tolerance=TOLERANCE)
    assert comparison.ok, (comparison.first_difference, comparison.missing, comparison.unexpected)
    by_rank = [runs.arrays(case, "losses", rank)["losses"] for rank in range(case.ranks)]
    np.testing.assert_allclose(np.mean(by_rank, axis=0), losses, rtol=1e-8)


@pytest.mark.cases(FAULTY)
def test_finds_injected_fault(case: Case, launched: Launches) -> None:
    comparison, _ = compared(case, launched)
    assert comparison.first_difference is not None
    assert comparison.max_relative > 1000 * TOLERANCE


@pytest.mark.cases(COMPRESSED)
def test_what_travels_in_16_bits_is_rounded_and_no_more(case: Case, launched: Launches) -> None:
    comparison, _ = compared(case, launched)
    assert not (comparison.missing or comparison.unexpected)
    # bfloat16 keeps 8 bits: an error of one part in 512 in each gradient and each row that is looked up.
    assert 1e-6 < comparison.max_relative < 2e-2
    plain = dataclasses.replace(case, compression="off")
    if plain in launched.cases:
        sent = [launched[case.ranks].arrays(each, "losses")["sent_bytes"].sum() for each in (case, plain)]
        assert sent[0] < 0.6 * sent[1]  # a quarter of the values' bytes, and all of the ids'


@pytest.mark.cases(SHORT)
def test_variables_of_16_bits_differ_from_one_device_by_rounding(case: Case, launched: Launches) -> None:
    comparison, _ = compared(case, launched)
    assert not (comparison.missing or comparison.unexpected)
    assert comparison.max_relative < 2e-2  # a few times the rounding error of the dtype
    runs = launched[case.ranks]
    initial, final = runs.arrays(case, "initial"), runs.arrays(case, "final")
    trained = [name for name in final if name.endswith(("/table", "/weights"))]
    assert len(trained) == 2
    for name in trained:
        moved = np.abs(final[name].astype(np.float64) - initial[name].astype(np.float64))
        assert moved.max() > 0.05, name


@pytest.mark.cases([*MATRIX, *COMPRESSED, *SHORT, *TRACED])
def test_ranks_agree(case: Case, launched: Launches) -> None:
    """Compares initial values, and final values of which each rank keeps a copy, except for statistics of its own
    data."""
    runs = launched[case.ranks]
    chief = {what: runs.arrays(case, what) for what in ("initial", "final")}
    for rank in range(1, case.ranks):
        for what in ("initial", "final"):
            own = runs.arrays(case, what, rank)
            assert own
            for name, array in own.items():
                if not name.endswith(("moving_mean", "moving_variance")) or what == "initial":
                    # Under ps the beta powers of other ranks may be ahead; the chief's count.
                    np.testing.assert_array_equal(array, chief[what][name], err_msg=f"{name} of rank {rank}")


@pytest.mark.cases([case for case in MATRIX if case.recuts])
def test_what_was_cut_anew_is_saved_as_one_device_would(case: Case, launched: Launches) -> None:
    runs = launched[case.ranks]
    saved, final = runs.arrays(case, "saved"), runs.arrays(case, "final")
    assert saved and saved.keys() == final.keys()
    for name, array in saved.items():
        np.testing.assert_array_equal(array, final[name], err_msg=name)


def test_hybrid_runs_sparse_updates_on_servers(launched: Launches) -> None:
    trace = launched[2].trace(Case(optimizer="adagrad", partitions=4))
    assert any("table" in label and "ResourceSparseApplyAdagrad(" in label for _, label in trace)
    checked: Counter[str] = Counter()
    for device, label in trace:
        name, _, call = label.partition(" = ")
        if "ResourceSparseApply" in call or ("VarHandleOp" in call and ("table" in name or "other" in name)):
            assert "/job:ps/" in device, label
            checked["server"] += 1
        if "VarHandleOp" in call and ("weights" in name or "bias" in name):
            assert "/job:worker/replica:0/task:0" in device, label
            checked["worker"] += 1
    assert min(checked["server"], checked["worker"]) > 0
    collectives = [label for _, label in trace if launched.ops.is_in(label)]
    assert len(collectives) == 1, collectives
    assert f"{launched.ops.sum}(" in collectives[0]
    assert not any(word in collectives[0].partition("(")[2] for word in ("table", "other", "Reshape_", "merge"))
    servers = {device for device, label in trace if "ResourceSparseApplyAdagrad(" in label}
    assert len(servers) == 2, "four partitions are spread over both servers"


@dataclass(frozen=True)
class Step:
    """The chief's last step: (device, type, name) of each op that ran, and the bytes sent for it, by variable of the
    plan, with the bytes for no single variable last."""

    ops: list[tuple[str, str, str]]
    sent: list[float]

    @classmethod
    def of(cls, case: Case, launched: Launches) -> Step:
        runs = launched[case.ranks]
        labels = [(device, label.partition(" = ")) for device, label in runs.trace(case)]
        ops = [(device, call.partition("(")[0], name) for device, (name, _, call) in labels]
        return cls(ops, runs.arrays(case, "losses")["sent_bytes"].tolist())

    @property
    def sent_bytes(self) -> float:
        return sum(self.sent)

    def count(self, type_: str, where: str) -> int:
        return sum(type_ == each and where in device for device, each, _ in self.ops)


def with_and_without(option: str, launched: Launches, **fields: object) -> tuple[Step, Step]:
    """Returns two cases of the matrix that differ in one option."""
    cases = [Case(**fields | {option: value}) for value in (True, False)]
    assert set(cases) <= set(MATRIX)
    on, off = (Step.of(case, launched) for case in cases)
    return on, off


def test_replicas_push_once_for_all_or_each_its_own(launched: Launches) -> None:
    fields = {"comm": "ps", "replicas": 2, "partitions": 4, "optimizer": "adam", "clip": True}
    once, each = with_and_without("local_aggregation", launched, **fields)
    pushes = [sum(type_.endswith("AccumulatorApplyGradient") for _, type_, _ in step.ops) for step in (once, each)]
    assert pushes[1] == 2 * pushes[0] > 0
    assert once.sent_bytes < 0.9 * each.sent_bytes
    assert {device[-5:] for device, type_, _ in once.ops if type_ == "Tanh"} == {"CPU:0", "CPU:1"}


def test_replicated_variables_are_read_once_for_all_replicas(launched: Launches) -> None:
    fields = {"comm": "ps", "replicas": 2, "gradients": "dense", "clip": True}
    on, off = with_and_without("replicate_variables", launched, **fields)
    # One read fewer of weights [3, 3] and bias [3], in float64.
    assert off.sent_bytes - on.sent_bytes == 8 * (WIDTH * WIDTH + WIDTH)
    copies = [(device[-5:], name) for device, type_, name in on.ops if type_ == "VarHandleOp" and "/copy" in name]
    assert len({name for _, name in copies}) == 2 * 2
    assert {device for device, _ in copies} == {"CPU:0", "CPU:1"}
    assert not any("/copy" in name for _, _, name in off.ops)


def test_gradients_are_clipped_where_their_server_is(launched: Launches) -> None:
    fields = {"comm": "ps", "optimizer": "adam", "clip": True, "partitions": 4}
    on, off = with_and_without("among_servers", launched, **fields)
    assert on.count("L2Loss", "/job:ps/") > 0 == on.count("L2Loss", "/job:worker/")
    assert off.count("L2Loss", "/job:worker/") > 0 == off.count("L2Loss", "/job:ps/")
    assert on.count("Mul", "/job:ps/") > 0 == off.count("Mul", "/job:ps/")
    assert on.sent_bytes < off.sent_bytes


def test_lookups_and_casts_run_where_less_travels(launched: Launches) -> None:
    on, off = with_and_without("between", launched, comm="ps", model="mixed", partitions=4)
    assert on.count("ResourceGather", "/job:ps/") > 0
    assert off.count("ResourceGather", "/job:ps/") == 0 < off.count("GatherV2", "/job:worker/")
    assert on.count("Cast", "/job:ps/") > off.count("Cast", "/job:ps/")
    assert on.sent_bytes < 0.7 * off.sent_bytes


def test_halves_of_a_model_run_on_two_devices_of_a_worker(launched: Launches) -> None:
    cases = [case for case in launched.cases if case.model == "halves" and case.comm in {"mpi", "hybrid"}]
    assert {case.comm for case in cases} == {"mpi", "hybrid"}
    for case in cases:
        ops = Step.of(case, launched).ops
        assert {device[-5:] for device, type_, _ in ops if type_ == "Tanh"} == {"CPU:0"}
        assert {device[-5:] for device, type_, _ in ops if type_ == "Sigmoid"} == {"CPU:1"}


def test_a_scope_that_names_a_task_means_it(launched: Launches) -> None:
    cases = [case for case in launched.cases if case.model == "on_tasks"]
    assert cases
    for case in cases:
        ops = Step.of(case, launched).ops
        places = {type_: {device for device, each, _ in ops if each == type_} for type_ in ("MatMul", "Tanh")}
        assert any("/job:ps/replica:0/task:1/" in device for device in places["MatMul"])
        assert places["Tanh"]
        assert all("/job:worker/replica:0/task:1/device:CPU:2" in device for device in places["Tanh"])
        planned = {variable.name.rpartition("/")[2]: variable for variable in case.plan(case.single()).variables}
        for name in ("table", "weights"):
            assert {shard.server for shard in planned[name].shards} == {1}
            assert planned[name].reason == "the variable's device scope names /job:ps/task:1"
        assert planned["untrained"].route == "local"


OWNED = [
    case
    for case in MATRIX
    if (case.comm, case.model, case.clip, case.user_parts, case.compression) == ("sharded", "plain", False, 1, "off")
]


@pytest.mark.cases(OWNED)
def test_owners_of_rows_get_and_send_no_more_than_planned(case: Case, launched: Launches) -> None:
    step = Step.of(case, launched)
    plan, (*sent, other) = case.plan(case.single()), step.sent
    assert step.sent_bytes <= (plan.sent_bytes_per_step or 0)
    # Ranks agree to skip a step by a ring allreduce of one 4-byte number.
    assert other == (0 if case.spoilt_step is None else pytest.approx(4 * 2 * (case.ranks - 1) / case.ranks))
    for variable, sent_bytes in zip(plan.variables, sent, strict=True):
        assert (sent_bytes > 0) == (variable.route != Route.LOCAL), variable.name
    assert not any("/job:ps/" in device for device, _, _ in step.ops)
    # One exchange each for all tables: ids, unless the step before has sent them, rows of lookups, and rows of
    # gradients.
    are_ahead = {variable.is_ahead for variable in plan.by_route(Route.ALLTOALL)}
    assert step.count(launched.ops.all_to_all, "") == sum({True: 2, False: 3}[each] for each in are_ahead)


@pytest.mark.cases([case for case in (*MATRIX, *COMPRESSED) if case.model == "deep"])
def test_dense_gradients_leave_in_buckets(case: Case, launched: Launches) -> None:
    """Compressed values use no ring: each rank sums a part of the bucket, which all ranks send to it."""
    exchange = launched.ops.sum if case.compression == "off" else launched.ops.all_to_all
    assert Step.of(case, launched).count(exchange, "") == 3


def test_mpi_uses_no_server(launched: Launches) -> None:
    case = next(case for case in launched.cases if case.comm == "mpi" and case.gradients == "both")
    trace = launched[case.ranks].trace(case)
    assert any(launched.ops.is_in(label) for _, label in trace)
    assert not any("/job:ps/" in device for device, _ in trace)


def test_ps_uses_no_collective(launched: Launches) -> None:
    case = next(case for case in launched.cases if case.comm == "ps" and case.gradients == "both")
    trace = launched[case.ranks].trace(case)
    assert any("/job:ps/" in device for device, _ in trace)
    assert not any(launched.ops.is_in(label) for _, label in trace)


@pytest.mark.cases([case for case in MATRIX if case.use_allgatherv])
def test_sparse_gradients_travel_by_allgatherv(case: Case, launched: Launches) -> None:
    labels = [label for _, label in launched[case.ranks].trace(case)]
    assert not any(launched.ops.gather in label for label in labels)
    calls = [label for label in labels if " = PyFunc(" in label]
    # Under hybrid the table that no server can have is looked up in a function; three pieces are three variables.
    tables = {"function": 1, "chained": 4}.get(case.model, 1 + case.user_parts)
    assert len(calls) == tables
    chained = 0
    for before, call in itertools.pairwise(calls):
        name, after = before.partition(" = ")[0], call.partition(" = ")[0]
        if "second_" in after and "second_" not in name:
            continue  # after the first model's update and thus after its calls, so TensorFlow omits the edge
        assert f"^{name}" in call, "the calls form a chain"
        chained += 1
    assert chained or tables == 1


def test_without_it_the_backend_gathers(launched: Launches) -> None:
    case = next(
        case
        for case in launched.cases
        if case.comm == "mpi" and case.gradients != "dense" and not case.use_allgatherv and case.reroute is None
    )
    labels = [label for _, label in launched[case.ranks].trace(case)]
    assert any(f" = {launched.ops.gather}(" in label for label in labels)
    assert not any("PyFunc(" in label for label in labels)
