"""Who may import whom: a module imports its own stage and the stages before it, and never a later one."""

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import parallax_runner

PACKAGE = Path(parallax_runner.__file__).parent
# Each folder, and each module at the root, is a stage. docs/design/0002 says what each of them makes. A slice is one
# folder whose modules belong to several stages: a route (`_stage_in_route`), a launcher or a front door (`IN_SLICES`).
STAGES = (
    *("files", "errors", "process", "routes.traits", "collectives", "config", "data", "graph"),
    *("layers", "analysis", "plan", "planning", "simulation", "search", "launch", "frontdoors"),
    *("rewrite", "shard", "metrics"),
    *("profile", "checkpoints", "shipment", "export", "train", "verify", "calibration", "track"),
    *("worker", "server", "driver", "actions", "api", "sweep", "calibrate", "__main__", "__init__"),
)
WITHOUT_TENSORFLOW = (
    *("files", "errors", "process", "routes.traits", "collectives", "config", "data", "plan", "planning", "simulation"),
    *("search", "launch", "frontdoors", "calibration", "track", "driver", "actions", "sweep", "calibrate", "__main__"),
)
# The modules of these stages that have TensorFlow ops.
WITH_TENSORFLOW = frozenset(
    {
        *("collectives.ops", "collectives.backend_ops", "collectives.horovod.ops", "collectives.horovod.gloo"),
        *("collectives.row_kernels", "collectives.native.ops", "collectives.native.row_kernels"),
        "data.table.tfrecord_reader",
    }
)
# Entries of processes: they answer before TensorFlow is there, which takes four seconds.
ENTRIES = ("worker.__main__", "worker.row_trial.__main__", "worker.calibration.__main__", "server.__main__")
HEAVY = frozenset({"tensorflow", "keras", "mlflow", "horovod", "scipy.optimize"})
ONLY_IMPORTERS = {
    "tensorflow": "process.tensorflow_import",  # among the stages without TensorFlow
    "horovod": "collectives.horovod.ops",
    "mlflow": tuple(
        f"track.mlflow.{name}"
        for name in ("runs", "artifacts", "errors", "model", "checkpoint", "dataset", "logged_models")
    ),
    "mpi4py": "routes.allgather.allgatherv",
    "omegaconf": "config",
}


# The modules of a slice that belong to another stage than the slice's folder.
IN_SLICES = {
    "launch.launchers.manual.rendezvous": "config",
    "launch.launchers.slurm.allocation": "config",
    "frontdoors.caffe2.data_parallel_model": "api",
    "frontdoors.paddle.trainer_init": "api",
    "frontdoors.mpi_collectives": "rewrite",
    "mpi_collectives": "rewrite",
}


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


def stage_of(module: str) -> str:
    for slice_or_module, stage in IN_SLICES.items():
        if f"{module}.".startswith(f"{slice_or_module}."):
            return stage
    top, *rest = module.split(".")
    return _stage_in_route(rest) if top == "routes" else top


def _stage_in_route(rest: list[str]) -> str:
    is_package = not rest or (len(rest) == 1 and (PACKAGE / "routes" / rest[0]).is_dir())
    if is_package or rest == ["traits"]:
        return "routes.traits"
    is_planning = rest in (["route"], ["registry"]) or rest[-1] == "planning"
    return "planning" if is_planning else "rewrite"


def is_without_tensorflow(module: str) -> bool:
    return stage_of(module) in WITHOUT_TENSORFLOW and module not in WITH_TENSORFLOW


def faults(module: str, path: Path, stages: Sequence[str] = STAGES) -> list[str]:
    """What a module imports and must not."""
    stage = stage_of(module)
    found = []
    for name in imports(path):
        top = name.split(".")[0]
        inner = name.removeprefix("parallax_runner.") if top == "parallax_runner" else ""
        if inner and inner != "parallax_runner" and stages.index(stage_of(inner)) > stages.index(stage):
            found.append(f"{module} imports {inner}, of a later stage")
        is_bound = top != "tensorflow" or is_without_tensorflow(module)
        if top in ONLY_IMPORTERS and is_bound and not module.startswith(ONLY_IMPORTERS[top]):
            found.append(f"{module} imports {name}")
    return found


def test_every_module_belongs_to_a_stage() -> None:
    assert {stage_of(module) for module in MODULES} == set(STAGES)
    assert len(STAGES) == len(set(STAGES))


def test_stages_import_earlier_stages_alone() -> None:
    assert [fault for module, path in MODULES.items() for fault in faults(module, path)] == []


def test_a_wrong_import_is_found(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    path = tmp_path / "wrong.py"
    path.write_text("def late():\n    from parallax_runner.driver import report\n    import mlflow, tensorflow\n")
    assert faults("plan.wrong", path) == [
        "plan.wrong imports driver.report, of a later stage",
        "plan.wrong imports mlflow",
        "plan.wrong imports tensorflow",
    ]
    assert faults("sweep.wrong", path) == ["sweep.wrong imports mlflow", "sweep.wrong imports tensorflow"]
    assert faults("rewrite.wrong", path)[1:] == ["rewrite.wrong imports mlflow"]


def names_mlflow(module: str, text: str) -> bool:
    """Whether a module outside MLflow's own modules and the configuration names MLflow."""
    return "mlflow" in text.lower() and not module.startswith(("track.mlflow", "config."))


def test_only_configuration_and_its_own_modules_name_mlflow() -> None:
    assert [module for module, path in MODULES.items() if names_mlflow(module, path.read_text(encoding="utf-8"))] == []


def test_a_module_that_names_mlflow_is_found() -> None:
    """Otherwise the test above could not fail."""
    assert names_mlflow("driver.report", "run_id = summary['mlflow_run_id']")
    assert names_mlflow("track.tracker", "# MLflow has no such field")
    assert not names_mlflow("track.mlflow.sender", "import mlflow")


# They read what a launcher of the user's, or a user's own optimizer, has left behind.
MAY_NAME_HOROVOD = ("collectives.horovod", "config.launched_processes", "graph.own_aggregation")


def knows_horovod(module: str, text: str) -> bool:
    """Whether a module outside Horovod's folder names its variables or the types of its ops."""
    return ("HOROVOD_" in text or '"Horovod' in text) and not module.startswith(MAY_NAME_HOROVOD)


def test_only_its_own_folder_knows_horovod() -> None:
    assert [name for name, path in MODULES.items() if knows_horovod(name, path.read_text(encoding="utf-8"))] == []


def test_a_module_that_knows_horovod_is_found() -> None:
    """Otherwise the test above could not fail."""
    assert knows_horovod("launch.remote", 'PASSED_ON = ("TF_", "HOROVOD_")')
    assert knows_horovod("rewrite.passes", 'op.type.startswith("Horovod")')
    assert not knows_horovod("collectives.horovod.ops", 'os.environ.setdefault("HOROVOD_CACHE_CAPACITY", "0")')


def test_models_import_nothing_of_the_project_but_its_layers() -> None:
    """The layers are Keras layers, which also work without a run."""
    paths = list((PACKAGE.parent / "models").rglob("*.py"))
    assert len(paths) >= 3
    for path in paths:
        names = {name for name in imports(path) if not name.startswith("parallax_runner.layers")}
        tops = {name.split(".")[0] for name in names}
        assert not tops & {"parallax_runner", "horovod", "mlflow", "hydra", "omegaconf"}, path


def test_what_needs_no_tensorflow_loads_none() -> None:
    """The test of single imports sees one file at a time; this sees what each of them drags in."""
    light = [module for module in MODULES if is_without_tensorflow(module)]
    assert len(light) > 100
    assert loads_heavy([*light, *ENTRIES]) == ""


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
