"""A peer that trains the model with plain `fit` in one process.

`python -m benchmarks.peers.keras_fit --steps 100 [Hydra overrides]`
"""

from __future__ import annotations

import keras

from benchmarks.peers.keras_model import examples, make_model, one_thread
from benchmarks.peers.task import Standings, Task, leave, parser


class Teller(keras.callbacks.Callback):
    """Reports each step."""

    def __init__(self, standings: Standings) -> None:
        super().__init__()
        self._standings = standings

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self._standings.tell(batch + 1, (logs or {})["loss"])


def main() -> None:
    """Trains the model."""
    arguments = parser(__doc__).parse_args()
    one_thread()
    task = Task(arguments, rank=0, size=1)
    model = make_model(task)
    model.jit_compile = False
    model.fit(examples(task), steps_per_epoch=task.steps, verbose=0, callbacks=[Teller(task.standings())])
    leave()


if __name__ == "__main__":
    main()
