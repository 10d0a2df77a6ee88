"""Launches the matrix: one launch for each number of ranks, all its cases in a row."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.launch import command, processes
from parallax_runner.launch.attempt import LaunchSpec
from tests.parallel.cases import COMPRESSED, FAULTY, MATRIX, SERVERS, SHORT, Case

BFLOAT16 = tf.bfloat16.as_numpy_dtype  # of which a file says no more than that it has two bytes
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Launched:
    """What a launch wrote, by case."""

    folder: Path
    cases: list[Case]

    def arrays(self, case: Case, what: str, rank: int = 0) -> dict[str, np.ndarray]:
        """`what` is initial, final or losses."""
        with np.load(self.folder / f"{self.cases.index(case)}_{what}_{rank}.npz") as file:
            return {name: array.view(BFLOAT16) if array.dtype.kind == "V" else array for name, array in file.items()}

    def trace(self, case: Case) -> list[tuple[str, str]]:
        """(device, «name = Type(inputs)») of every op of the chief's last step."""
        path = self.folder / f"{self.cases.index(case)}_trace.json"
        return [tuple(entry) for entry in json.loads(path.read_text())]


class Launches(dict[int, Launched]):
    """By number of ranks; each is made when a test first asks for it, once, also if it fails."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        super().__init__()
        self._folders = folders
        self._failed: dict[int, AssertionError] = {}

    def __missing__(self, ranks: int) -> Launched:
        if ranks in self._failed:
            raise self._failed[ranks]
        try:
            self[ranks] = launch(ranks, self._folders.mktemp(f"ranks_{ranks}"))
        except AssertionError as error:
            self._failed[ranks] = error
            raise
        return self[ranks]


@pytest.fixture(scope="session")
def launched(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Launched]:
    """By number of ranks."""
    return Launches(tmp_path_factory)


def launch(ranks: int, folder: Path) -> Launched:
    """Runs all cases for so many ranks."""
    cases = [case for case in (*MATRIX, *FAULTY, *COMPRESSED, *SHORT) if case.ranks == ranks]
    (folder / "cases.json").write_text(json.dumps([dataclasses.asdict(case) for case in cases]))
    worker = command.worker_command(
        run_dir=folder, workers=ranks, threads_per_worker=1, module="tests.parallel.matrix_worker"
    )
    servers = [
        command.server_command(run_dir=folder, index=index, threads_per_server=1, module="tests.parallel.matrix_server")
        for index in range(SERVERS)
    ]
    spec = LaunchSpec(
        run_dir=folder,
        workers=ranks,
        worker=worker._replace(env=worker.env | {"PYTHONPATH": str(ROOT)}),
        server=tuple(server._replace(env=server.env | {"PYTHONPATH": str(ROOT)}) for server in servers),
    )
    result = processes.run(spec, on_message=lambda message: None)
    assert result.status == "finished", f"{result.failure}\n" + "\n".join(
        result.failure.last_lines if result.failure else ()
    )
    return Launched(folder, cases)
