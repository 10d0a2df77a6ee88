"""What a process imports at its start: TensorFlow without Keras, and of Horovod the ops alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
BEGIN = """
import os, sys
from parallax_runner.process.tensorflow_import import import_tensorflow
import_tensorflow()
"""


def said_by(program: str, **env: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", BEGIN + program], capture_output=True, text=True, cwd=ROOT, env=os.environ | env
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_a_rank_has_all_its_stages_without_keras() -> None:
    program = """
from parallax_runner.worker import rank
from parallax_runner.export import end_of_run
from parallax_runner.routes.allgather import allgatherv
from parallax_runner.collectives.horovod import ops as hvd_ops
import gc
print('keras' in sys.modules, 'horovod' in sys.modules, gc.isenabled(), gc.get_freeze_count() > 100_000)
"""
    assert said_by(program) == ["False", "True", "True", "True"]


def test_a_driver_plans_a_model_without_keras(tmp_path: Path) -> None:
    program = f"""
os.chdir({str(tmp_path)!r})
sys.argv = ["parallax", "model=simple", "data=linear", "action=plan", "tracking=off"]
from parallax_runner.__main__ import main
print(main(), "tensorflow" in sys.modules, "keras" in sys.modules)
"""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    assert said_by(program, PYTHONPATH=path)[-3:] == ["0", "True", "False"]


def test_a_model_finds_keras_when_it_asks_for_it() -> None:
    program = """
import tensorflow as tf
from tensorflow.keras.layers import Dense
print(tf.keras.layers.Dense is Dense, 'TF_USE_LEGACY_KERAS' in os.environ)
"""
    assert said_by(program) == ["True", "False"]


def test_what_the_user_says_of_keras_stays() -> None:
    assert said_by("print(os.environ['TF_USE_LEGACY_KERAS'])", TF_USE_LEGACY_KERAS="0") == ["0"]


def test_a_keras_of_old_that_is_installed_is_not_taken_for_the_users(tmp_path: Path) -> None:
    (tmp_path / "tf_keras").mkdir()
    (tmp_path / "tf_keras" / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    program = """
import tensorflow as tf
print(tf.keras.layers.Dense.__module__.split('.')[0], 'tf_keras' in sys.modules)
"""
    assert said_by(program, PYTHONPATH=path) == ["keras", "False"]


def test_a_script_finds_all_of_horovod_and_the_same_ops() -> None:
    program = """
from parallax_runner.collectives.horovod import ops as hvd_ops
import horovod.tensorflow as hvd
import horovod.tensorflow.mpi_ops as ops
print(ops is hvd_ops.hvd, hvd.SyncBatchNormalization.__name__, hvd.allgather is ops.allgather)
"""
    assert said_by(program) == ["True", "SyncBatchNormalization", "True"]


def test_ops_are_those_of_a_package_that_is_imported_already() -> None:
    program = """
import horovod.tensorflow as hvd
from parallax_runner.collectives.horovod import ops as hvd_ops
print(hvd.allgather is hvd_ops.hvd.allgather, sys.modules['horovod.tensorflow'] is hvd)
"""
    assert said_by(program) == ["True", "True"]


LIST_KERNELS = """
import sys
if sys.argv[1] == "server":
    from parallax_runner.process.tensorflow_import import import_servers_part
    import_servers_part()
    from parallax_runner.train import cluster
    print(*sys.modules)
else:
    import tensorflow
    print()
from tensorflow.python.framework import kernels
from tensorflow.python.platform import _pywrap_tf2
print(_pywrap_tf2.is_enabled())
for kernel in kernels.get_all_registered_kernels().kernel:
    print(str(kernel).replace(chr(10), " "))
"""


def test_a_server_imports_a_part_of_tensorflow_with_all_kernels() -> None:
    def seen_by(process: str) -> tuple[list[str], str, set[str]]:
        command = [sys.executable, "-c", LIST_KERNELS, process]
        told = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout.splitlines()
        modules, enables_2, *kernels = told
        return modules.split(), enables_2, set(kernels)

    modules, enables_2, kernels = seen_by("server")
    _, always_enables_2, all_kernels = seen_by("any")
    assert "tensorflow.python.training.server_lib" in modules
    assert not {"tensorflow.compat.v1", "tensorflow.python.keras", "tensorflow.python.distribute"} & set(modules)
    assert enables_2 == always_enables_2 == "True"
    assert len(kernels) > 1000
    # Only this op's library is loaded by Python code: a feature of audio in TensorFlow Lite, which no server computes.
    assert {kernel for kernel in all_kernels - kernels if "AudioMicrofrontend" not in kernel} == set()


def test_cusolver_is_found_in_its_package(tmp_path: Path) -> None:
    """TensorFlow opens it by name, as here."""
    folder = tmp_path / "nvidia" / "cusolver" / "lib"
    folder.mkdir(parents=True)
    (tmp_path / "empty.c").touch()
    library = folder / "libcusolver.so.11"
    subprocess.run(["cc", "-shared", f"-Wl,-soname,{library.name}", "-o", library, tmp_path / "empty.c"], check=True)
    (folder / "libcusolver.so.12").write_text("incomplete")
    program = """
import ctypes
import sys
from parallax_runner.process.tensorflow_import import load_cusolver
for load in (lambda: None, load_cusolver):
    load()
    try:
        print(ctypes.CDLL("libcusolver.so.11")._name)
    except OSError:
        print("missing")
print("tensorflow" in sys.modules)
"""
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert found.stdout.split() == ["missing", "libcusolver.so.11", "False"], found.stderr
