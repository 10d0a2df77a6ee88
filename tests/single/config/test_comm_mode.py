"""What a choice of `comm` means for the processes: its routes state it, and no rule asks for a name."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import parallax_runner
from parallax_runner.config.comm_mode import CommMode, choices, mode_of, mode_with
from parallax_runner.config.compose import Composer
from parallax_runner.config.schema import CommConfig, RoutesConfig, RunConfig
from parallax_runner.driver.check import validated
from parallax_runner.errors import ConfigError
from parallax_runner.routes import traits as registry
from parallax_runner.routes.registry import route_named

MODES = {
    "auto": CommMode(is_chosen_by_cost=True, has_servers=True, has_collectives=True),
    "hybrid": CommMode(has_servers=True, has_collectives=True, gathers=True),
    "local": CommMode(is_one_process=True),
    "mpi": CommMode(has_collectives=True, gathers=True),
    "ps": CommMode(has_servers=True, is_all_on_servers=True),
    "sharded": CommMode(has_collectives=True, needs_all_ranks=True),
}
# A choice of `comm`, a route, an action, a launcher or a tracker, or the function of a data source.
ASKED = re.compile(r"\b((comm|route|action|launcher|tracker)(\.name)?|data(\['_target_'\]|\.get\('_target_'.*\)))$")
PACKAGE = Path(parallax_runner.__file__).parent


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_choice_has_its_properties() -> None:
    assert {name: mode_with(routes) for name, routes in choices().items()} == MODES


def bring(monkeypatch: pytest.MonkeyPatch, base: str, **traits: bool) -> None:
    """Adds a route `mine`, which differs from the route `base` by `traits`, as an entry point does."""
    module = ModuleType("package_outside.planning")
    module.ROUTE = type("Mine", (type(route_named(base)),), {"name": "mine", **traits})()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(registry, "_modules", lambda: {**registry.BUILT_IN, "mine": module.__name__})
    registry._loaded.cache_clear()


def config_of(tmp_path: Path, dense: str, sparse: str, *overrides: str) -> RunConfig:
    """The configuration of a choice `own` with these routes."""
    (tmp_path / "comm").mkdir()
    (tmp_path / "comm" / "own.yaml").write_text(f"name: own\nroutes: {{dense: {dense}, sparse: {sparse}}}\n")
    job = Composer(config_dir=str(tmp_path)).job(["comm=own", *overrides])
    return validated(job)


def test_a_route_of_another_package_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    bring(monkeypatch, "ps")
    assert mode_with(RoutesConfig(dense="mine", sparse="mine")) == MODES["ps"]
    bring(monkeypatch, "ps", on_servers=False, needs_all_ranks=True)
    assert mode_with(RoutesConfig(dense="allreduce", sparse="mine")) == CommMode(
        has_collectives=True, gathers=True, needs_all_ranks=True
    )


def test_rules_ask_the_routes_of_a_choice_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bring(monkeypatch, "ps")
    config = config_of(tmp_path, "mine", "mine", "comm.sync=false", "cluster.replicas_per_worker=2")
    assert (config.comm.sync, config.cluster.replicas_per_worker) == (False, 2)


@pytest.mark.parametrize(
    "traits, overrides, message",
    [
        ({}, ["comm.sync=false"], "asynchronous training needs the servers of comm=ps, but the choice is comm=own"),
        ({}, ["cluster.servers=0"], "comm=own needs at least 1 server"),
        (
            {"on_servers": False},
            ["partition=search", "action=search"],
            "comm=own has no servers, so no variable can be",
        ),
        (
            {"needs_all_ranks": True},
            ["model=script", "data=script", "model.path=train.py"],
            "only all ranks together can read rows",
        ),
    ],
)
def test_rules_refuse_by_the_routes(
    traits: dict[str, bool], overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bring(monkeypatch, "ps", **traits)
    (tmp_path / "train.py").touch()
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, "allreduce", "mine", *overrides)


def test_a_name_counts_until_its_routes_are_refused() -> None:
    """A rule does not blame another key for routes that contradict the name."""
    for_mpi = RoutesConfig(dense="allreduce", sparse="allgather")
    assert mode_of(CommConfig(name="ps", routes=for_mpi)) == MODES["ps"]
    assert mode_of(CommConfig(name="own", routes=for_mpi)) == MODES["mpi"]
    job = Composer().job(["comm=ps", "comm.routes.sparse=pss", "comm.sync=false"])
    with pytest.raises(ConfigError, match="no such route; expected one of local, allreduce, allgather, ps, alltoall"):
        validated(job)


def named_in(text: str) -> Iterator[str]:
    """The comparisons of a choice of `comm`, or of something else that other packages can provide, with names."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(ASKED.search(ast.unparse(side)) for side in sides) and any(map(is_name, sides)):
                yield ast.unparse(node)


def is_name(node: ast.expr) -> bool:
    """Whether an expression is a text, a constant, a member of `Route`, or a container with one of them."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(is_name, node.elts))
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text or bool(re.fullmatch(r"(.*\.)?[A-Z_]+(\.name)?", ast.unparse(node)))


def test_no_rule_asks_for_a_name() -> None:
    paths = list(PACKAGE.rglob("*.py"))
    assert len(paths) > 400
    found = {str(path.relative_to(PACKAGE)): list(named_in(path.read_text(encoding="utf-8"))) for path in paths}
    assert {path: comparisons for path, comparisons in found.items() if comparisons} == {}


def test_a_rule_that_asks_for_a_name_is_found() -> None:
    """Otherwise the test above could not fail."""
    rules = """
a = config.comm.name == 'ps' or comm.name in ('mpi', 'ps')
b = comm.name == other
c = plan.comm == COMM
d = 'ps' == variable.route
e = route in {Route.PS, Route.LOCAL}
f = wanted.route == LOCAL.name
g = route.name in used or comm in comms
h = config.action == 'train' or action in ('plan', 'sync') or action != other
i = cluster.launcher == slurm_allocation.LAUNCHER or launcher != 'auto' or launcher is None
j = config.tracking.tracker not in BUILT_IN
k = config.data['_target_'] == 'parallax_runner.data.text.load'
l = 'x.load' == data.get('_target_', '') or data['_target_'] == function
m = config.model['_target_'] == SCRIPT
"""
    assert set(named_in(rules)) == {
        "config.comm.name == 'ps'",
        "comm.name in ('mpi', 'ps')",
        "plan.comm == COMM",
        "'ps' == variable.route",
        "route in {Route.PS, Route.LOCAL}",
        "wanted.route == LOCAL.name",
        "config.action == 'train'",
        "action in ('plan', 'sync')",
        "cluster.launcher == slurm_allocation.LAUNCHER",
        "launcher != 'auto'",
        "config.tracking.tracker not in BUILT_IN",
        "config.data['_target_'] == 'parallax_runner.data.text.load'",
        "'x.load' == data.get('_target_', '')",
    }
