"""An optimizer that averages gradients over ranks before another optimizer applies them."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.errors import CollectiveError
from parallax_runner.frontdoors.mpi_collectives.exchange import allreduce


class DistributedOptimizer(tf.train.Optimizer):
    """Wraps a tf.train.Optimizer. `compute_gradients` averages the gradients. Everything else is delegated to the
    wrapped optimizer.

    Slots, their names and checkpoints are the same as without this class. Only gradients are exchanged, so all ranks
    must begin with the same values: use the same graph seed, or the same checkpoint, on all ranks.
    """

    def __init__(self, optimizer: tf.train.Optimizer, name: str | None = None, use_locking: bool = False) -> None:
        """Wraps `optimizer`. `name` is the name of the ops that apply gradients. The default is "Distributed" followed
        by the name of the wrapped class."""
        if not isinstance(optimizer, tf.train.Optimizer):
            raise CollectiveError(
                f"DistributedOptimizer: expected a tensorflow.compat.v1.train.Optimizer, got {optimizer!r}"
            )
        super().__init__(use_locking, name or f"Distributed{type(optimizer).__name__}")
        self._optimizer = optimizer

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, tf.Variable]]:
        """Returns the gradients of the wrapped optimizer, averaged over all ranks. A gradient of None stays None."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        return [(None if gradient is None else allreduce(gradient), variable) for gradient, variable in pairs]

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None, **kwargs: Any
    ) -> tf.Operation:
        """Applies gradients with the wrapped optimizer. This method does not average them."""
        return self._optimizer.apply_gradients(grads_and_vars, global_step, name or self.get_name(), **kwargs)

    def get_slot(self, var: tf.Variable, name: str) -> tf.Variable | None:
        """Returns a slot of the wrapped optimizer."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Returns the slot names of the wrapped optimizer."""
        return self._optimizer.get_slot_names()

    def variables(self) -> list[tf.Variable]:
        """Returns the variables of the wrapped optimizer."""
        return self._optimizer.variables()

    def __getattr__(self, name: str) -> Any:
        # Python calls this method for missing attributes. `_optimizer` itself is missing only during construction and
        # copying.
        if name == "_optimizer":
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    # tf.train.Checkpoint calls the methods below.

    def _trackable_children(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return self._optimizer._trackable_children(*args, **kwargs)

    def _lookup_dependency(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer._lookup_dependency(*args, **kwargs)

    def _create_or_restore_slot_variable(self, *args: Any, **kwargs: Any) -> None:
        self._optimizer._create_or_restore_slot_variable(*args, **kwargs)
