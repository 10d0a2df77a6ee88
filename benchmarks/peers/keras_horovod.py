"""A peer with a Keras model, its optimizer, and Horovod's allreduce of each gradient. mpirun starts a process per rank.

`python -m benchmarks.peers.keras_horovod --steps 100 [--sparse-as-dense] [Hydra overrides]`

The loop follows Horovod's documentation for TensorFlow 2, which uses `hvd.DistributedGradientTape`. That class calls
`ref()` on each variable, but Keras 3 variables have no `ref()`. This peer therefore calls `hvd.allreduce` directly.
"""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from benchmarks.peers.keras_model import examples, make_model, one_thread
from benchmarks.peers.task import Task, leave, parser


def main() -> None:
    """Trains one rank."""
    made = parser(__doc__)
    made.add_argument("--sparse-as-dense", action="store_true", help="send a sparse gradient as its whole table")
    arguments = made.parse_args()
    hvd.init()
    one_thread()
    task = Task(arguments, rank=hvd.rank(), size=hvd.size())
    model = make_model(task)
    optimizer, metric = model.optimizer, tf.keras.metrics.AUC(from_logits=True)

    @tf.function
    def training_step(inputs: dict[str, tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            loss = model.loss(labels, logits)
        gradients: list[Any] = tape.gradient(loss, model.trainable_variables)
        if arguments.sparse_as_dense:
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        # For an IndexedSlices, hvd.allreduce gathers indices and values.
        gradients = [hvd.allreduce(gradient) for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        metric.update_state(labels, logits)
        return hvd.allreduce(loss)

    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([variable.value for variable in (*model.variables, *optimizer.variables)], root_rank=0)
    batches = iter(examples(task))
    task.run(lambda _: training_step(*next(batches)))
    hvd.shutdown()
    leave()


if __name__ == "__main__":
    main()
