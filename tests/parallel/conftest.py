"""Launches the matrix: one launch for each number of ranks, with all its cases one after the other."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.launch import processes
from parallax_runner.launch.job import Command, Job, LaunchSpec, thread_environment
from parallax_runner.launch.launchers.local import Local
from tests import forked
from tests.parallel.case_lists.basic import BASIC
from tests.parallel.cases import SERVERS, Case
from tests.parallel.exchange_ops import OPS
from tests.parallel.matrix import EVERY
from tests.parallel.native_launch import SIZES, run_sizes
from tests.shared import shared

BFLOAT16 = tf.bfloat16.as_numpy_dtype  # a file only says that it has two bytes
ROOT = Path(__file__).resolve().parents[2]


# The backends of collectives that run the matrix. The first also runs in the default tier, the others only as slow
# tests.
FIRST_BACKEND, *OTHER_BACKENDS = ("native", "horovod")
WORKERS = {"native": "tests.parallel.matrix_worker", "horovod": "tests.parallel.horovod_backend_worker"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives each test the cases that it names, limited to the number of ranks of its module, under each backend."""
    mark = metafunc.definition.get_closest_marker("cases")
    if mark is not None:
        cases = [case for case in mark.args[0] if case.ranks == metafunc.module.RANKS]
        given = [
            pytest.param(case, name, id=_name(case, name))
            for name in (FIRST_BACKEND, *OTHER_BACKENDS)
            for case in cases
        ]
        metafunc.parametrize(("case", "launched"), given, indirect=["launched"], scope="session")


def _name(case: Case, backend: str) -> str:
    """Returns a test's name in brackets: slow tests (tests/slow.toml) begin with «more-»."""
    if backend != FIRST_BACKEND:
        return f"more-{backend}-{case.name}"
    return case.name if case in BASIC else f"more-{case.name}"


@dataclass(frozen=True)
class Launched:
    """The files that a launch wrote, by case."""

    folder: Path
    cases: list[Case]

    def arrays(self, case: Case, what: str, rank: int = 0) -> dict[str, np.ndarray]:
        """Returns the arrays of a rank; `what` is initial, final or losses."""
        with np.load(self.folder / f"{self.cases.index(case)}_{what}_{rank}.npz") as file:
            return {name: array.view(BFLOAT16) if array.dtype.kind == "V" else array for name, array in file.items()}

    def trace(self, case: Case) -> list[tuple[str, str]]:
        """Returns (device, «name = Type(inputs)») of every op in the chief's last step."""
        path = self.folder / f"{self.cases.index(case)}_trace.json"
        return [tuple(entry) for entry in json.loads(path.read_text())]


class Launches:
    """Launches of one backend by number of ranks; each is made when a test first asks for it, once for all xdist
    workers. `ops` names the backend's ops."""

    def __init__(self, folders: pytest.TempPathFactory, cases: list[Case], backend: str) -> None:
        self._folders = folders
        self.cases = cases
        self.backend = backend
        self.ops = OPS[backend]

    def __getitem__(self, ranks: int) -> Launched:
        cases = [case for case in self.cases if case.ranks == ranks]
        worker = WORKERS[self.backend]
        name = f"{self.backend}_ranks_{ranks}"
        return shared(self._folders, name, lambda folder: launch(ranks, cases, folder, worker_module=worker))


@pytest.fixture(scope="session")
def launched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launches:
    """The cases that this session's tests request of a backend, each run once."""
    backend = getattr(request, "param", FIRST_BACKEND)
    cases = asked(request.session.items, request.config.getoption("--tier"), backend)
    return Launches(tmp_path_factory, cases, backend)


def asked(items: list[pytest.Item], tier: str, backend: str) -> list[Case]:
    """Returns the cases of parametrized tests, or all those of the tier if another test uses the launches."""
    asking = [item for item in items if "launched" in getattr(item, "fixturenames", ())]
    every = [item.callspec.params if hasattr(item, "callspec") else {} for item in asking]
    params = [given for given in every if given.get("launched", FIRST_BACKEND) == backend]
    cases = {given["case"] for given in params if "case" in given}
    if any("case" not in given for given in params):
        cases |= BASIC if tier == "default" else set(EVERY)
    return [case for case in EVERY if case in cases]


def launch(
    ranks: int,
    cases: list[Case],
    folder: Path,
    launcher: Local | None = None,
    worker_module: str = "tests.parallel.matrix_worker",
) -> Launched:
    """Runs all these cases with `ranks` ranks one after the other, in forked processes unless a launcher is given."""
    (folder / "cases.json").write_text(json.dumps([dataclasses.asdict(case) for case in cases]))
    job = Job(
        run_dir=folder,
        workers=ranks,
        servers=SERVERS,
        env=thread_environment(1),
        worker_module=worker_module,
        server_module="tests.parallel.matrix_server",
    )
    result = processes.run(LaunchSpec(job, launcher or Forked()), on_message=lambda message: None)
    assert result.status == "finished", f"{result.failure}\n" + "\n".join(
        result.failure.last_lines if result.failure else ()
    )
    check_optimized(folder / "logs")
    return Launched(folder, cases)


def check_optimized(logs: Path) -> None:
    """Checks that TensorFlow optimized every rank's graph: a rank without some optimizations rounds differently."""
    told = [line for log in sorted(logs.glob("worker_*.log")) for line in log.read_text().splitlines()]
    assert not [line for line in told if "Optimizer failed" in line or "optimizer failed" in line]


class Forked(Local):
    """A launcher whose processes begin with TensorFlow already imported."""

    def workers(self, job: Job, cleanup: ExitStack) -> list[Command]:
        return [_forked(command) for command in super().workers(job, cleanup)]

    def servers(self, job: Job) -> list[Command]:
        return [_forked(command) for command in super().servers(job)]


def _forked(command: Command) -> Command:
    argv = [str(forked.STUB) if word == sys.executable else word for word in command.argv]
    return command._replace(argv=argv, env=command.env | forked.environment() | {"PYTHONPATH": str(ROOT)})


@pytest.fixture(scope="session", params=SIZES, ids=lambda size: f"{size}_ranks")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of each rank of native_script.py, in rank order, for each number of ranks."""
    return shared(tmp_path_factory, "native_exchanges", run_sizes)[request.param]
