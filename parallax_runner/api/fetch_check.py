"""Checks whether a worker can serve a fetch. Some values have moved to servers, and others can be computed only by all
workers together."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from parallax_runner.api.steps import Steps
from parallax_runner.errors import TrainingError
from parallax_runner.graph import edit
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.routes.rewriting import needs_all_ranks, shared_variables

log = logging.getLogger(__name__)


class FetchCheck:
    """Checks which fetches of the single-device graph a worker's graph can serve."""

    def __init__(self, plan: Plan, steps: Steps, distributed: DistributedGraph) -> None:
        self._plan, self._steps, self._distributed = plan, steps, distributed
        self._on_servers = shared_variables(plan)

    def check_part(self, updates: frozenset[str]) -> None:
        """Raises TrainingError for a fetch that runs only some of the updates, if variables are on servers."""
        if self._plan.servers:
            left_out = min(self._steps.updates - updates)
            raise TrainingError(
                f"this fetch does not run all updates: «{left_out}» is missing. With variables on servers, a step must "
                "run all updates; fetch all train ops together, or choose run_option='MPI'"
            )

    def check_fetches(self, needs: Iterable[str], tensors: Iterable[tf.Tensor], *, updates: frozenset[str]) -> None:
        """Raises TrainingError if a fetch would wait forever, or would have a different effect than in the
        single-device graph."""
        is_whole = updates == self._steps.updates
        for name in needs:
            aggregated = None if updates else self._steps.aggregate_needed(name)
            if aggregated is not None:
                raise TrainingError(
                    f"«{name}» needs «{aggregated}», which is computed from the gradients of all workers; fetch "
                    f"«{name}» together with the train op"
                )
            if not (is_whole and name in self._steps.whole):
                self._check_assignments(name)
        for tensor in tensors:
            self._check_reachable(tensor.name)

    def without_initial_values(self, op: str, *, has_trained: bool) -> list[str]:
        """Returns a list with `op` or, if `op` sets initial values of variables, the ops of its group that do not.

        When a session exists, all variables already have their initial values or values from a checkpoint. Raises
        TrainingError if steps have changed the variables since then.
        """
        parts = self._steps.grouped(op)
        kept = [part for part in parts if not self._steps.initial_values_given_by(part)]
        if len(kept) == len(parts):
            return [op]
        if has_trained:
            raise TrainingError(
                f"«{op}» sets variables to their initial values, but parallel_run already did so, and steps have been "
                f"run since; do not fetch «{op}»"
            )
        log.info("%s is not run, because all variables already have values", op)
        return kept

    @functools.cache  # noqa: B019 - one instance per process
    def _check_assignments(self, name: str) -> None:
        for op, variable in self._steps.assignments_of(name):
            if variable in self._on_servers:
                raise TrainingError(
                    f"«{op}» assigns to «{variable}», which is on servers, where only gradients can change it; do not "
                    f"fetch «{op}», or choose run_option='MPI'"
                )

    @functools.cache  # noqa: B019
    def _check_reachable(self, name: str) -> None:
        """Raises TrainingError for a tensor that only the chief computes, or that is spread over servers or workers."""
        if not self._plan.servers and not needs_all_ranks(self._plan):
            return
        for op in edit.ancestors([self._distributed.graph.get_tensor_by_name(name).op], control=False):
            if op.name in self._moved:
                raise TrainingError(
                    f"«{name}» needs «{op.name}», which is computed by the owners of the rows "
                    f"({'the servers' if self._plan.servers else 'each worker owns some rows'}); fetch other values, "
                    "such as the variables, or choose run_option='MPI'"
                )
            if op.type.endswith("TakeGradient"):
                self._check_taken(name, op)

    def _check_taken(self, name: str, taken: tf.Operation) -> None:
        """Raises TrainingError for a value that is computed from a sum that another worker takes from the servers."""
        backup_workers = self._plan.options.backup_workers
        if backup_workers:
            raise TrainingError(
                f"«{name}» needs «{taken.name}», which a different worker takes from the servers in each step "
                f"(comm.ps.backup_workers={backup_workers}); choose run_option='MPI' or comm.ps.backup_workers=0"
            )
        if taken not in self._of_step:
            sums = "fetch a sum of it (tf.nn.l2_loss, tf.reduce_sum), which every worker gets, or "
            raise TrainingError(
                f"«{name}» needs «{taken.name}», which worker 0 takes from the servers; fetch it only there "
                f"(if worker 0 has one replica), or {sums if self._plan.options.ps.boundary_among_servers else ''}"
                "choose run_option='MPI'"
            )

    @functools.cached_property
    def _of_step(self) -> set[tf.Operation]:
        """The ops that this worker runs in each step."""
        return edit.ancestors([self._distributed.train_op])

    @functools.cached_property
    def _moved(self) -> frozenset[str]:
        """The ops of the single-device graph that have a copy for each owner of rows."""
        ops = self._distributed.graph.get_operations()
        names = {op.name for op in ops}
        return frozenset(op.name for op in ops if f"{op.name}/shard_0" in names and op.type != "VarHandleOp")
