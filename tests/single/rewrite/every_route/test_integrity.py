"""The check behind each pass finds what it says it finds."""

from __future__ import annotations

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.rewrite import passes
from parallax_runner.rewrite.every_route.integrity import RewriteError, check
from parallax_runner.rewrite.replica import start_replica
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from tests.single.small_models import OPTIMIZERS, captured, clip, lookup_model, planned


def rewritten(comm: str = "local", *, optimizer: str = "adagrad", until: str = "") -> Rewrite:
    single = captured(optimizer=optimizer, process=clip)
    with tf.Graph().as_default() as graph:
        rewrite = start_replica(single, planned(single, comm, partitions=2), graph, replica=0, seed=1)
        for run_pass in passes.all_passes():
            run_pass(rewrite)
            if run_pass.name == until:
                break
    return rewrite


def op_of(rewrite: Rewrite, kind: str) -> tf.Operation:
    (found,) = [op for op in rewrite.region if op.type == kind]
    return found


# The default tier has two of the optimizers.
BY_OPTIMIZER = [pytest.param(one, id=one if one in ("adagrad", "adam") else f"more-{one}") for one in OPTIMIZERS]


@pytest.mark.parametrize("optimizer", BY_OPTIMIZER)
@pytest.mark.parametrize("comm", ["local", "mpi", "ps", "hybrid", "sharded"])
def test_sound_graphs_pass(comm: str, optimizer: str) -> None:
    rewrite = rewritten(comm, optimizer=optimizer)
    # The check looks at these; without them it finds nothing in any graph.
    assert rewrite.replaced
    assert ("table" in rewrite.placements) == (comm in ("ps", "hybrid", "sharded"))
    check(rewrite, after="update_own_rows", is_updated=True)


def test_a_cycle_of_control_edges_is_found() -> None:
    rewrite = rewritten()
    norm, update = op_of(rewrite, "Minimum"), op_of(rewrite, "ResourceSparseApplyAdagrad")
    norm._add_control_input(update)
    with pytest.raises(RewriteError, match=r"after pass some_pass: op «.+» waits for itself"):
        check(rewrite, after="some_pass")


def test_a_cycle_of_data_edges_is_found() -> None:
    rewrite = rewritten()
    (scale,) = [op for op in rewrite.region if op.name == "clip_by_global_norm/mul"]
    (scaled,) = [op for op in rewrite.region if op.name == "clip_by_global_norm/mul_2"]
    total = op_of(rewrite, "Minimum")
    with rewrite.graph.as_default():
        back = tf.reduce_sum(scaled.outputs[0])
    assert scale in edit.ancestors([back.op])
    total._update_input(0, back)
    with pytest.raises(RewriteError, match="waits for itself"):
        check(rewrite, after="some_pass")


def test_a_loop_of_the_model_is_no_cycle() -> None:
    def looping(features: dict[str, tf.Tensor]) -> tf.Tensor:
        start = [tf.constant(0), lookup_model(features)]
        return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x * 2.0), start)[1]

    tf.disable_control_flow_v2()
    try:
        single = captured(looping)
    finally:
        tf.enable_control_flow_v2()
    distributed = passes.rewrite_for_rank(single, planned(single, "hybrid", partitions=2), rank=0, seed=1)
    assert any(op.type == "NextIteration" for op in distributed.graph.get_operations())


@pytest.mark.parametrize("comm", ["local", "mpi"])
@pytest.mark.parametrize("part", ["values", "indices"])
def test_a_gradient_that_is_not_aggregated_is_found(comm: str, part: str) -> None:
    rewrite = rewritten(comm)
    (raw,) = [gradient for gradient in rewrite.single.gradients if gradient.indices is not None]
    update = op_of(rewrite, "ResourceSparseApplyAdagrad")
    position = 3 if part == "values" else 4
    update._update_input(position, rewrite.graph.get_tensor_by_name(getattr(raw, part)))
    with pytest.raises(RewriteError, match=f"op «{update.name}» reads a gradient that is not aggregated"):
        check(rewrite, after="some_pass")


def test_a_gradient_that_is_merged_but_not_yet_gathered_is_found() -> None:
    rewrite = rewritten("mpi", until="skip_deduplication")
    (merged,) = [gradient.values for gradient in rewrite.gradients if gradient.indices is not None]
    with rewrite.graph.as_default():
        for run_pass in passes.all_passes()[2:]:
            run_pass(rewrite)
    op_of(rewrite, "ResourceSparseApplyAdagrad")._update_input(3, merged)
    with pytest.raises(RewriteError, match="not aggregated"):
        check(rewrite, after="some_pass")


def test_the_backward_pass_may_read_what_was_replaced() -> None:
    rewrite = rewritten()
    assert rewrite.replaced
    readers = [op for name in rewrite.replaced for op in rewrite.graph.get_tensor_by_name(name).consumers()]
    assert readers  # The merge itself.
    check(rewrite, after="some_pass")


@pytest.mark.parametrize("comm", ["ps", "hybrid"])
def test_a_use_of_a_variable_that_has_moved_is_found(comm: str) -> None:
    rewrite = rewritten(comm)
    handle = rewrite.graph.get_tensor_by_name("table:0")
    (lookup, *_) = [op for op in edit.ancestors([rewrite.train_op, *rewrite.step_ops]) if op.type == "ResourceGather"]
    lookup._update_input(0, handle)
    check(rewrite, after="shard_variables")  # Not yet: updates move later.
    with pytest.raises(RewriteError, match=r"use variable «table», which is now sharded") as caught:
        check(rewrite, after="update_own_rows", is_updated=True)
    assert lookup.name in str(caught.value)


def test_a_right_graph_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    monkeypatch.setattr(passes, "check", lambda rewrite, *, after, is_updated: checked.append((after, is_updated)))
    single = captured()
    passes.rewrite_for_rank(single, planned(single, "local"), rank=0, seed=1)
    assert checked == [(passes.all_passes()[-1].name, True)]


def test_the_pass_that_broke_the_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the passes have run once, they run again, with a check after each of them."""

    @rewrite_pass(writes=["step_ops"])
    def tie_a_knot(rewrite: Rewrite) -> None:
        first, second = tf.no_op("first"), tf.no_op("second")
        first._add_control_input(second)
        second._add_control_input(first)
        rewrite.step_ops.append(first)

    names, checked = [one.name for one in passes.all_passes()], []
    place = names.index("shard_variables")
    broken = (*passes.all_passes()[:place], tie_a_knot, *passes.all_passes()[place:])
    monkeypatch.setattr(passes, "all_passes", lambda: broken)
    original = passes.check

    def noted(rewrite: Rewrite, *, after: str, is_updated: bool) -> None:
        checked.append(after)
        original(rewrite, after=after, is_updated=is_updated)

    monkeypatch.setattr(passes, "check", noted)
    single = captured()
    with pytest.raises(passes.RewriteError, match="after pass tie_a_knot: op «first» waits for itself"):
        passes.rewrite_for_rank(single, planned(single, "local"), rank=0, seed=1)
    assert checked == [names[-1], *names[:place], "tie_a_knot"]
