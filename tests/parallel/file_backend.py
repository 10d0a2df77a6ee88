"""A backend of collectives from outside the package: ranks of one machine exchange arrays through files."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.collectives.backend import Backend, Lack
from parallax_runner.collectives.backend_ops import BackendOps, ListenOn, Meeting

WAIT_SECS = 120.0


class Files(Backend):
    """Exchanges through files in `folder`, which all ranks share."""

    title = "files"
    op_types = "PyFunc"
    sent_dtypes = frozenset(["bool", "int32", "int64", "float32", "float64"])

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        self._ops = FileOps(folder, rank, ranks)

    def lack(self) -> Lack | None:
        return None

    def ops(self) -> BackendOps:
        return self._ops

    def without_mpirun(self, hosts: Sequence[str]) -> list[dict[str, str]]:
        return [{} for _ in hosts]

    def without_mpi_by(self, environ: Mapping[str, str]) -> str | None:
        return None


class FileOps(BackendOps):
    """Each exchange writes this rank's arrays into a file, waits for the files of all ranks, and reads them. Exchanges
    match by the name of their op, and by how often an op of this name has run."""

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        self._folder, self._rank, self._ranks = folder, rank, ranks
        self._runs: Counter[str] = Counter()

    def join(self, *, lengths_vary: bool, may_fuse: bool) -> tuple[int, int]:
        self._folder.mkdir(exist_ok=True)
        return self._rank, self._ranks

    def met(self, meeting: Meeting, listen_on: ListenOn) -> AbstractContextManager[None]:
        return nullcontext()

    def connects_by_mpi(self) -> bool:
        return False

    def rank_op(self, name: str | None) -> tf.Tensor:
        return tf.constant(self._rank, name=name)

    def size_op(self, name: str | None) -> tf.Tensor:
        return tf.constant(self._ranks, name=name)

    def local_rank_op(self, name: str | None) -> tf.Tensor:
        return tf.constant(self._rank, name=name)

    def local_rank(self) -> int:
        return self._rank

    def sum(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self.sum_group([tensor], name)[0]

    def sum_group(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        def summed(name: str, *arrays: np.ndarray) -> list[np.ndarray]:
            by_rank = self._exchanged(name, arrays)
            return [np.sum(parts, axis=0, dtype=parts[0].dtype) for parts in zip(*by_rank, strict=True)]

        sums = self._op(summed, tensors, name)
        for one, tensor in zip(sums, tensors, strict=True):
            one.set_shape(tensor.shape)
        return sums

    def gather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        def gathered(name: str, array: np.ndarray) -> np.ndarray:
            return np.concatenate([arrays[0] for arrays in self._exchanged(name, [array])])

        (rows,) = self._op(gathered, [tensor], name)
        rows.set_shape(tf.TensorShape([None]).concatenate(tensor.shape[1:]))
        return rows

    def all_to_all(self, tensor: tf.Tensor, counts: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        def exchanged(name: str, rows: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
            parts = []
            for sent, counts_of_sender in self._exchanged(name, [rows, counts]):
                begin = counts_of_sender[: self._rank].sum()
                parts.append(sent[begin : begin + counts_of_sender[self._rank]])
            return [np.concatenate(parts), np.array([len(part) for part in parts], np.int32)]

        came, came_counts = self._op(exchanged, [tensor, counts], name)
        came.set_shape(tf.TensorShape([None]).concatenate(tensor.shape[1:]))
        came_counts.set_shape([self._ranks])
        return came, came_counts

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        (value,) = self._op(lambda name, array: self._exchanged(name, [array])[0][0], [tensor], name)
        value.set_shape(tensor.shape)
        return value

    def _op(self, function: Callable[..., Any], tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Returns the results of an exchange. `function` takes the op's name and the tensors' values."""
        names: list[str] = []

        def run(*arrays: np.ndarray) -> Any:
            return function(names[0], *arrays)

        found = tf.numpy_function(run, list(tensors), [tensor.dtype for tensor in tensors], name=name)
        results = list(found) if isinstance(found, list | tuple) else [found]
        names.append(results[0].op.name)
        return results

    def _exchanged(self, name: str, arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """Returns the arrays of all ranks."""
        self._runs[name] += 1
        start = f"{hashlib.sha256(name.encode()).hexdigest()[:24]}-{self._runs[name]}"
        whole = self._path(start, self._rank)
        part = whole.with_suffix(".part")
        with open(part, "wb") as file:
            np.savez(file, *arrays)
        part.rename(whole)
        return [self._loaded(self._path(start, rank), len(arrays)) for rank in range(self._ranks)]

    def _loaded(self, path: Path, count: int) -> list[np.ndarray]:
        deadline = time.monotonic() + WAIT_SECS
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no rank has written {path.name}")
            time.sleep(0.001)
        with np.load(path) as file:
            return [file[f"arr_{number}"] for number in range(count)]

    def _path(self, start: str, rank: int) -> Path:
        return self._folder / f"{start}-{rank}.npz"
