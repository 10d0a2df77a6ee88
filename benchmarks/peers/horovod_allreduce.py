"""A peer that uses Horovod's own allreduce for each gradient. mpirun starts one process per rank.

`python -m benchmarks.peers.horovod_allreduce --steps 100 [--sparse-as-dense | --grouped] [Hydra overrides]`
"""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import tensorflow.compat.v1 as tf

from benchmarks.peers.single_device import Training, session_config
from benchmarks.peers.task import leave, parser


class AllreduceOptimizer:
    """An optimizer that averages gradients over the ranks.

    It replaces `hvd.DistributedOptimizer`, which does not work with this version of TensorFlow. Both exchange an
    `IndexedSlices` with two allgathers unless `sparse_as_dense` is set.
    """

    def __init__(self, optimizer: tf.train.Optimizer, *, sparse_as_dense: bool, grouped: bool) -> None:
        self._optimizer = optimizer
        self._sparse_as_dense = sparse_as_dense
        self._grouped = grouped

    def compute_gradients(self, *arguments: Any, **options: Any) -> list[tuple[Any, tf.Variable]]:
        return self._optimizer.compute_gradients(*arguments, **options)

    def apply_gradients(self, pairs: Any, global_step: tf.Variable | None = None) -> tf.Operation:
        gradients, variables = zip(*((one, variable) for one, variable in pairs if one is not None), strict=True)
        if self._sparse_as_dense:
            gradients = [tf.convert_to_tensor(one) for one in gradients]
        if self._grouped:
            averaged = hvd.grouped_allreduce(list(gradients))
        else:
            averaged = [hvd.allreduce(one) for one in gradients]
        return self._optimizer.apply_gradients(zip(averaged, variables, strict=True), global_step=global_step)

    def minimize(self, loss: tf.Tensor, global_step: tf.Variable | None = None, **options: Any) -> tf.Operation:
        return self.apply_gradients(self.compute_gradients(loss, **options), global_step)


def main() -> None:
    """Trains one rank."""
    made = parser(__doc__)
    made.add_argument("--sparse-as-dense", action="store_true", help="send a sparse gradient as its whole table")
    made.add_argument("--grouped", action="store_true", help="send all gradients in one group (dense ones only)")
    arguments = made.parse_args()
    hvd.init()
    training = Training(arguments, rank=hvd.rank(), size=hvd.size())
    with tf.Graph().as_default():
        returned = training.build(
            lambda optimizer: AllreduceOptimizer(
                optimizer, sparse_as_dense=arguments.sparse_as_dense, grouped=arguments.grouped
            )
        )
        initialize, agree = tf.global_variables_initializer(), hvd.broadcast_global_variables(0)
        with tf.Session(config=session_config()) as session:
            session.run(initialize)
            session.run(agree)
            training.train(session, returned["loss"], returned["train_op"])
    hvd.shutdown()
    leave()


if __name__ == "__main__":
    main()
