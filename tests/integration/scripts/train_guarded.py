"""A script whose `fit` stands where the rest of the script could run in the workers, too. Leaves a file `DEED-PID` for
each deed of a process.

Its first argument says where `fit` is called: guarded (by `try`), in a thread, or in a process that was spawned or
forked. With the second argument `generator`, the data cannot travel, so each worker runs the script.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import parallax_runner


def leave(deed: str) -> None:
    Path(f"{deed}-{os.getpid()}").touch()


def train() -> None:
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(1).normal(size=(64, 4)).astype("float32")
    overrides = ["run_dir=run", "tracking=off"]
    if sys.argv[2:] == ["generator"]:
        types = (tf.TensorSpec([4], "float32"), tf.TensorSpec([1], "float32"))
        rows = tf.data.Dataset.from_generator(lambda: zip(x, x[:, :1], strict=True), output_signature=types)
        overrides.append("data.resume=approximate")
        parallax_runner.fit(model, rows.batch(32), comm="sharded", overrides=overrides)
    else:
        parallax_runner.fit(model, x, x[:, :1], comm="sharded", overrides=overrides)


def train_guarded() -> None:
    stop = threading.Event()
    threading.Thread(target=stop.wait).start()
    try:
        train()
    except BaseException:
        leave("caught")
        raise
    finally:
        leave("finally")
        stop.set()


def train_forked() -> None:
    child = os.fork()
    if child == 0:
        train()
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    where = sys.argv[1]
    if where == "guarded":
        train_guarded()
    elif where == "forked":
        train_forked()
    else:
        start = {"thread": threading.Thread, "spawned": multiprocessing.get_context("spawn").Process}[where]
        started = start(target=train)
        started.start()
        started.join()
        sys.exit(getattr(started, "exitcode", 0))
    leave("after")
