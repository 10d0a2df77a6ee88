"""Who may import whom: the tree is the data flow, a stage imports earlier nouns and never a later stage."""

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

import parallax_runner

PACKAGE = Path(parallax_runner.__file__).parent
# They call the stages; only they import one another.
ENTRIES = (
    *("__main__", "exit_status", "sweep", "pipeline", "build", "supervise", "recovery", "recording", "artifacts"),
    *("run_lock", "partition_search", "partition_results", "trials_apart", "report", "worker", "server", "api"),
    *("rank", "segments", "sessions", "validation"),
    *("costing", "measurement", "measurer", "calibrate", "calibrator", "simulating"),
)
ANYONE = (
    *("errors", "stages", "whole_file", "regular_file", "link_or_copy", "user_code", "credentials", "hydra_quotes"),
)

# What a stage may import of the other stages: a folder, or one module of it.
MAY_IMPORT = {
    "errors": (),
    "credentials": (),
    "stages": (),
    "tensorflow_import": (),
    "terminal": (),
    "whole_file": (),
    "regular_file": (),
    "link_or_copy": (),
    "hydra_quotes": (),
    "user_code": (),
    "config": (),
    "data": (),
    "graph": (),
    "shard": ("graph",),
    "analysis": ("graph",),
    "plan": ("analysis.variable_info",),
    "rewrite": ("graph", "analysis", "plan"),
    "calibration": ("plan.constants", "rewrite"),
    "simulation": ("analysis.variable_info", "plan"),
    "measure": ("config.schema", "data", "graph", "analysis", "plan", "rewrite", "train.feed"),
    "search": ("plan.plan", "config.frozen"),
    "launch": ("plan.plan",),
    "mpi_collectives": ("rewrite.collectives", "rewrite.constant_folding"),
    "train": (
        *("data", "graph", "analysis", "plan.plan", "rewrite.distributed_graph", "rewrite.constant_folding"),
        *("launch.bind_address", "launch.client", "launch.ports", "profile.record"),
    ),
    "export": ("data", "graph", "train.checkpoint_files", "train.best_checkpoint", "train.literal_path"),
    "track": ("plan.plan",),
    "profile": (),
    "verify": ("graph", "analysis", "data", "plan"),
}
WITHOUT_TENSORFLOW = (
    *("errors", "stages", "terminal", "whole_file", "regular_file", "link_or_copy", "user_code", "credentials"),
    "hydra_quotes",
    *("config", "data", "plan", "search", "simulation", "launch", "track"),
)
HEAVY = frozenset({"tensorflow", "keras", "mlflow", "horovod"})
ONLY_IMPORTER = {"horovod": "rewrite.collectives", "mlflow": "track.mlflow_", "mpi4py": "rewrite.allgatherv"}


def modules() -> dict[str, Path]:
    """Dotted names below the package; a folder's `__init__` goes by the folder's name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = full.removeprefix("parallax_runner.") in MODULES
                yield full if is_module else str(node.module)


def allowed(module: str, imported: str) -> bool:
    stage, other = module.split(".")[0], imported.split(".")[0]
    if stage in ENTRIES or stage == other or imported in ANYONE:
        return True
    return any(imported == one or imported.startswith(f"{one}.") for one in MAY_IMPORT[stage])


def test_every_stage_stands_in_the_table() -> None:
    stages = {module.split(".")[0] for module in MODULES} - {"__init__", *ENTRIES}
    assert stages == set(MAY_IMPORT)


def test_imports_are_found() -> None:
    """Otherwise `test_direction` would find no fault in any module."""
    for module, expected in (("rewrite.collectives", "horovod"), ("rewrite.allgatherv", "mpi4py")):
        assert any(name.split(".")[0] == expected for name in imports(MODULES[module])), module
    assert "parallax_runner.plan.choose" in imports(MODULES["plan.planner"])


@pytest.mark.parametrize("module", [module for module in MODULES if module != "__init__"])
def test_direction(module: str) -> None:
    stage = module.split(".")[0]
    for name in imports(MODULES[module]):
        top = name.split(".")[0]
        if top == "parallax_runner":
            inner = name.removeprefix("parallax_runner").lstrip(".")
            assert not inner or allowed(module, inner), f"{module} imports {inner}"
        if top in ("tensorflow", "keras"):
            assert stage not in WITHOUT_TENSORFLOW, f"{module} imports {name}"
        if top in ONLY_IMPORTER:
            assert module.startswith(ONLY_IMPORTER[top]), f"{module} imports {name}"


def test_models_import_nothing_of_the_project() -> None:
    paths = list((PACKAGE.parent / "models").rglob("*.py"))
    assert len(paths) >= 3
    for path in paths:
        tops = {name.split(".")[0] for name in imports(path)}
        assert not tops & {"parallax_runner", "horovod", "mlflow", "hydra", "omegaconf"}, path


def test_planning_and_launching_load_no_tensorflow() -> None:
    """The table sees one file at a time; this sees what it drags in."""
    light = [module for module in MODULES if module.split(".")[0] in WITHOUT_TENSORFLOW]
    assert light
    assert loads_heavy(light) == ""


def test_the_entries_load_no_tensorflow() -> None:
    """The driver refuses a wrong configuration, and a child reports to the driver, before the four seconds it takes."""
    light = [
        name
        for name in ("__main__", "pipeline", "measurer", "calibrate", "calibrator", "worker", "server")
        if name in MODULES
    ]
    assert light
    assert loads_heavy(light) == ""


def test_a_heavy_import_is_seen() -> None:
    assert loads_heavy(["errors", "config.compose"], heavy={"hydra"}) == "config.compose loads hydra"


def loads_heavy(names: list[str], heavy: Collection[str] = HEAVY) -> str:
    """The first module that loads a package of `heavy`, and which; they are imported in this order in one process."""
    program = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module('parallax_runner.' + name)\n"
        f"    loaded = {set(heavy)!r} & set(sys.modules)\n"
        "    if loaded:\n"
        "        sys.exit(print(name, 'loads', *sorted(loaded)))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()
