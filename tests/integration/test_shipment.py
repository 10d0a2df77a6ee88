"""What travels to the workers of `fit`: they run no script and import no Keras, and train as plain Keras does."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "train_shipped.py"
# Notes each import of Keras in a worker.
SITE = """
import sys, os
class Noting:
    def find_spec(self, name, path=None, target=None):
        if name == "keras.src" and "parallax_runner.worker" in sys.orig_argv:
            open(os.environ["KERAS_IMPORTS"], "a").write("keras\\n")
sys.meta_path.insert(0, Noting())
"""
OP = """
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
using namespace tensorflow;
REGISTER_OP("Twice").Input("x: float").Output("y: float").SetShapeFn(shape_inference::UnchangedShape);
class TwiceOp : public OpKernel {
 public:
  explicit TwiceOp(OpKernelConstruction* c) : OpKernel(c) {}
  void Compute(OpKernelContext* c) override {
    const Tensor& x = c->input(0);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(c, c->allocate_output(0, x.shape(), &y));
    for (int64_t i = 0; i < x.NumElements(); ++i) y->flat<float>()(i) = 2 * x.flat<float>()(i);
  }
};
REGISTER_KERNEL_BUILDER(Name("Twice").Device(DEVICE_CPU), TwiceOp);
"""


CALLS_PYTHON = """
import numpy as np
import tensorflow.compat.v1 as tf
from models import simple
def build(features, optimizer):
    print("the model is built")
    scale = tf.numpy_function(lambda: np.float32(1), [], tf.float32)
    return simple.build(features | {"x": features["x"] * tf.ensure_shape(scale, [])}, optimizer)
"""


def environment(folder: Path) -> dict[str, str]:
    """Imports of Keras in a worker are noted in the folder."""
    (folder / "sitecustomize.py").write_text(SITE)
    (folder / "keras_imports").touch()
    paths = os.pathsep.join([str(ROOT), str(folder)])
    return {**os.environ, "PYTHONPATH": paths, "KERAS_IMPORTS": str(folder / "keras_imports")}


def configured(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Trains a configured model for three steps."""
    command = [sys.executable, "-m", "parallax_runner", *overrides, "comm=sharded", "cluster.workers=2"]
    command += ["train.steps=3", "tracking=off", f"run_dir={folder / 'run'}"]
    return subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=300, check=False
    )


def train(kind: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Runs the script in `folder`."""
    command = [sys.executable, SCRIPT, kind, folder / "run", *more]
    return subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=300, check=False
    )


def runs_of_script(folder: Path) -> list[int]:
    """How often each worker has run the script."""
    logs = sorted((folder / "run" / "logs").glob("worker_*.log"))
    return [log.read_text().count("the script runs") for log in logs]


@pytest.mark.parametrize("kind", ["arrays", "table"])
def test_nothing_of_the_user_runs_in_workers(kind: str, tmp_path: Path) -> None:
    done = train(kind, tmp_path)
    assert done.returncode == 0 and "equal to plain Keras" in done.stdout, done.stderr
    assert runs_of_script(tmp_path) == [0, 0]
    assert not (tmp_path / "keras_imports").read_text()
    assert not (tmp_path / "run" / "shipment").exists()


def test_a_configured_keras_model_needs_no_keras_in_workers(tmp_path: Path) -> None:
    done = configured(tmp_path, "experiment=dlrm_keras", "data.cardinalities=[50,60]", "data.examples=400")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "keras_imports").read_text()


def test_a_configured_model_that_calls_python_is_built_in_each_worker(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CALLS_PYTHON)
    done = configured(tmp_path, "model=simple", "model._target_=mine.build")
    assert done.returncode == 0, done.stderr
    assert "the model calls Python code (op «" in done.stderr and "so each worker builds the model again" in done.stderr
    logs = [(tmp_path / "run" / "logs" / f"worker_{rank}.log").read_text() for rank in (0, 1)]
    assert [log.count("the model is built") for log in logs] == [1, 1]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("python", "the model calls Python code (op «"),
        (
            "generator",
            "the data calls Python code (from_generator, py_function or numpy_function), so each worker runs",
        ),
    ],
)
def test_what_calls_python_runs_in_each_worker(kind: str, reason: str, tmp_path: Path) -> None:
    done = train(kind, tmp_path)
    assert reason in done.stderr and "runs the script again up to fit" in done.stderr
    assert runs_of_script(tmp_path) == [1, 1]
    if kind == "generator":  # each worker draws examples of its own
        assert "reads other training data (the first examples differ) than the driver" in done.stderr
    else:
        assert done.returncode == 0 and "equal to plain Keras" in done.stdout, done.stderr


def test_the_data_can_be_on_another_disk(tmp_path: Path) -> None:
    done = train("cache", tmp_path, str(tmp_path / "cache"))
    assert done.returncode == 0 and "equal to plain Keras" in done.stdout, done.stderr
    assert list((tmp_path / "cache").iterdir()) == []
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) & stat.S_IWOTH == 0


def test_an_op_of_a_library(tmp_path: Path) -> None:
    source, library = tmp_path / "twice.cc", tmp_path / "twice.so"
    source.write_text(OP)
    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    subprocess.run(["g++", "-w", "-shared", "-fPIC", "-O1", source, "-o", library, *flags], check=True)
    done = train("library", tmp_path, str(library))
    assert done.returncode == 0 and "equal to plain Keras" in done.stdout, done.stderr
    assert runs_of_script(tmp_path) == [0, 0]
