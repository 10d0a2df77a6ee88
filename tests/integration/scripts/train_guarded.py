"""A script whose `fit` stands where the rest of the script could run in the workers, too. Leaves a file `DEED-PID` for
each deed of a process.

Its argument says where `fit` is called: guarded (by `try`), in a thread, or in a process that was spawned or forked.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from pathlib import Path

import keras
import numpy as np

import parallax_runner


def leave(deed: str) -> None:
    Path(f"{deed}-{os.getpid()}").touch()


def train() -> None:
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(1).normal(size=(64, 4)).astype("float32")
    parallax_runner.fit(model, x, x[:, :1], comm="sharded", overrides=["run_dir=run", "tracking=off"])


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
