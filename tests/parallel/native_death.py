"""The last rank is killed while the others wait for its exchange: `native_death.py FOLDER`. Writes what the others are
told to rank_RANK.json."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import tensorflow.compat.v1 as tf

from parallax_runner.collectives import ops
from parallax_runner.collectives.chosen import BACKENDS, choose

WAIT_SECS = 1.0  # until the others wait
PATIENCE_SECS = 60.0


def said_of(session: tf.Session, exchange: tf.Tensor) -> str:
    """Returns the error of a run, or "no error"."""
    try:
        session.run(exchange, options=tf.RunOptions(timeout_in_ms=int(PATIENCE_SECS * 1000)))
    except tf.errors.OpError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def main(folder: Path) -> None:
    """Runs a good exchange, one in which the last rank dies, and another one."""
    choose(BACKENDS["native"])
    rank, size = ops.join()
    with tf.Graph().as_default(), tf.Session() as session:
        summed = ops.sum_of_one(tf.ones([3]), name="orphan")
        session.run(summed)
        if rank == size - 1:
            time.sleep(WAIT_SECS)
            os.kill(os.getpid(), signal.SIGKILL)
        started = time.monotonic()
        said = [said_of(session, summed) for _ in range(2)]
    found = {"said": said, "secs": time.monotonic() - started}
    (folder / f"rank_{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)  # MPI cannot end in order without the dead rank


if __name__ == "__main__":
    tf.disable_eager_execution()
    main(Path(sys.argv[1]))
