"""A route from a package outside this repository, in four files: it plans, and N ranks with it equal one device."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from parallax_runner.launch.launchers.local import Local
from parallax_runner.routes import traits as registry
from tests.parallel.cases import Case
from tests.parallel.conftest import ROOT, Launched, launch
from tests.parallel.test_equivalence import compared

CASES = [
    Case(comm="mpi", optimizer="adam", clip=True, reroute=".gathered_twice"),
    Case(comm="mpi", optimizer="momentum", gradients="sparse", average_sparse=False, reroute=".gathered_twice"),
]
FILES = {
    # The planning half.
    "toy_route/planning.py": """
from parallax_runner.analysis.variable_info import GradientKind
from parallax_runner.routes.route import Paid, Route

class GatheredTwice(Route):
    name = "gathered_twice"
    rewriting = "toy_route.rewriting"
    is_collective = True
    all_of_it = "all gathers"

    def takes(self, variable, *, servers):
        return variable.gradient is GradientKind.SPARSE

    def sent_bytes(self, parts, workers):
        return parts.pushed * (workers - 1)

    def paid(self, model, variable, touched, parts):
        secs = model.ring_bytes(self.sent_bytes(parts, model.cluster.workers)) * model.constants.allgather.secs_per_byte
        return Paid(secs, 0.0, model.apply_secs(variable, touched.merged))

    def reason(self, variable):
        return "a test wants it"

    def lengths_vary(self, plan):
        return True

ROUTE = GatheredTwice()
""",
    # The rewriting half.
    "toy_route/rewriting.py": """
import tensorflow.compat.v1 as tf
from parallax_runner.rewrite.every_route.merge import merge
from parallax_runner.collectives import ops as collectives
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.routes.rewriting import RouteRewriting

@rewrite_pass(writes=["gradients", "replaced", "sent"])
def gather(rewrite):
    for gradient in rewrite.gradients_by("gathered_twice"):
        rows = collectives.concat_over_ranks(gradient.values, name=f"toy_values/{gradient.name}")
        ids = collectives.concat_over_ranks(gradient.indices, name=f"toy_ids/{gradient.name}")
        others = rewrite.plan.replicas - 1
        rewrite.sent += [Sent(each, others, gradient.variables[0]) for each in (gradient.values, gradient.indices)]
        values, indices = merge(rows, ids)
        if rewrite.plan.options.average_sparse:
            values /= tf.cast(rewrite.plan.replicas, values.dtype)
        rewrite.replace_gradient(gradient, values, indices)

REWRITING = RouteRewriting(exchange=(gather,))
""",
    # The choice of comm.
    "conf/comm/toy.yaml": "name: toy\nroutes: {dense: allreduce, sparse: gathered_twice}\n",
    # The entry point, which an installer writes.
    "toy_route-1.0.dist-info/entry_points.txt": "[parallax_runner.routes]\ngathered_twice = toy_route.planning\n",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("outside")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.lstrip("\n"))
    assert len(FILES) == 4
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (folder, ROOT))))
        registry._modules.cache_clear()
        yield folder
    registry._modules.cache_clear()
    registry._loaded.cache_clear()


def test_the_command_line_plans_with_it(package: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "parallax_runner",
        "--config-dir",
        str(package / "conf"),
        "comm=toy",
        "action=plan",
    ]
    lm = ("data=zipf", "data.vocab_size=5000", "hydra.run.dir=run")
    result = subprocess.run([*command, *lm], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert "gathered_twice" in (tmp_path / "run" / "plan.json").read_text()
    refused = subprocess.run(
        [*command, *lm, "comm.routes.sparse=gathered_once"], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert refused.returncode == 2
    assert "Did you mean comm.routes.sparse=gathered_twice?" in refused.stderr


@pytest.fixture(scope="module")
def launched(package: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Launched]:
    return {2: launch(2, CASES, tmp_path_factory.mktemp("toy"), Local())}


@pytest.mark.parametrize("case", CASES, ids=["adam", "momentum"])
def test_ranks_equal_one_device_by_it(case: Case, launched: dict[int, Launched]) -> None:
    comparison, losses = compared(case, launched)  # type: ignore[arg-type]
    assert comparison.ok, (comparison.first_difference, comparison.missing, comparison.unexpected)
    by_rank = [launched[2].arrays(case, "losses", rank)["losses"] for rank in range(2)]
    np.testing.assert_allclose(np.mean(by_rank, axis=0), losses, rtol=1e-8)
    assert any("toy_values" in label for _, label in launched[2].trace(case))
