"""How many files a newcomer touches to add a route, a launcher and the like, docs and tests aside.

What the package has already shows it: if a file names one built-in action, or all of them, then a new action needs a
change of that file too. docs/extending.md tells which files each kind needs; tests named there add one of each kind.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from parallax_runner.collectives import chosen
from parallax_runner.config import actions, launchers, trackers
from parallax_runner.config.schema import CommConfig, MpiConfig, PsConfig
from parallax_runner.routes import traits

ROOT = Path(__file__).parents[2]
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
LAUNCHERS = "parallax_runner/launch/launchers"
# At most so many files for one of each kind, with the files of the new one itself.
GOALS = {
    "route": 4,
    "tracker": 2,
    "launcher": 2,
    "field of comm": 2,
    "optimizer": 2,
    "action": 2,
    "data source": 2,
    "collective backend": 2,
}
# Built-in routes that files beside the registry name, and how many: where nothing is exchanged, the option
# use_allgatherv, and variables that are recut between steps. Other routes need no such file. These numbers may only
# fall.
NAMED_ELSEWHERE = {"local": 3, "allgather": 2, "ps": 1}


class BuiltIn(NamedTuple):
    """One of a kind in the package: the dotted name of its module or folder, and the files that must name it."""

    kind: str
    name: str
    own: str
    registry: str

    @property
    def most_elsewhere(self) -> int:
        """How many other files may name it."""
        return NAMED_ELSEWHERE.get(self.name, 0) if self.kind == "route" else 0


def file_of(module: object) -> str:
    """A module's file, from the root of the project."""
    return str(Path(str(vars(module)["__file__"])).relative_to(ROOT))


def names_in_python(text: str) -> Iterator[str]:
    """The dotted names that a module imports, and those in its texts."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            yield node.value


@cache
def names_by_file() -> dict[str, frozenset[str]]:
    """The dotted names in each file of the package, and in each choice of the configuration."""
    python = {path: names_in_python(path.read_text(encoding="utf-8")) for path in package_files()}
    choices = {path: DOTTED.findall(path.read_text(encoding="utf-8")) for path in (ROOT / "conf").rglob("*.yaml")}
    return {str(path.relative_to(ROOT)): frozenset(names) for path, names in (python | choices).items()}


def package_files() -> list[Path]:
    return sorted((ROOT / "parallax_runner").rglob("*.py"))


def files_that_name(own: str) -> set[str]:
    """The files outside a module or folder that name it, or something in it."""
    place = own.replace(".", "/")
    others = {
        file: names for file, names in names_by_file().items() if file != f"{place}.py" and place not in parents(file)
    }
    return {file for file, names in others.items() if any(f"{name}.".startswith(f"{own}.") for name in names)}


def parents(file: str) -> list[str]:
    return [str(parent) for parent in Path(file).parents]


def targets(group: str) -> dict[str, str]:
    """The files of the choices of a group, and the function or class that each names."""
    contents = {path: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / "conf" / group).glob("*")}
    return {str(path.relative_to(ROOT)): content["_target_"] for path, content in contents.items()}


def module_of(dotted: str) -> str:
    return dotted.rpartition(".")[0]


def built_in() -> list[BuiltIn]:
    """All that the package has of each kind that has a registry, and its data sources, whose registry is `conf/`."""
    found = [BuiltIn("action", name, module_of(one), file_of(actions)) for name, one in actions.BUILT_IN.items()]
    found += [BuiltIn("launcher", name, module_of(one), file_of(launchers)) for name, one in launchers.BUILT_IN.items()]
    # A tracker and a route are folders.
    found += [
        BuiltIn("tracker", name, module_of(module_of(one)), file_of(trackers))
        for name, one in trackers.BUILT_IN.items()
    ]
    found += [BuiltIn("route", name, module_of(one), file_of(traits)) for name, one in traits.BUILT_IN.items()]
    backend = type(chosen.backend())
    found.append(BuiltIn("collective backend", backend.__name__, module_of(backend.__module__), file_of(chosen)))
    found += [
        BuiltIn("data source", Path(file).stem, module_of(target), file)
        for file, target in targets("data").items()
        if target.startswith("parallax_runner.data.")
    ]
    return found


BUILT_IN = built_in()


def test_there_is_one_of_each_kind() -> None:
    """Fields of `comm` and optimizers have tests of their own below."""
    assert {one.kind for one in BUILT_IN} | {"field of comm", "optimizer"} == set(GOALS)


def files_of_its_own(one: BuiltIn) -> list[str]:
    """The files that the smallest one of a kind has. A backend can be one module: tests/parallel/file_backend.py."""
    if one.kind != "route":
        return [one.own]
    planning = import_module(traits.BUILT_IN[one.name])
    halves = [name for name in (planning.__name__, planning.ROUTE.rewriting) if name]
    return [*halves, "a choice of comm, which gives it variables"]


def files_that_must_name(one: BuiltIn) -> set[str]:
    """The files outside that name it, apart from other launchers, which may extend it."""
    naming = files_that_name(one.own)
    if one.kind != "launcher":
        return naming
    return {file for file in naming if LAUNCHERS not in parents(file)}


@pytest.mark.parametrize("one", BUILT_IN, ids=lambda one: f"{one.kind} {one.name}")
def test_one_more_needs_no_more_files_than_the_goal(one: BuiltIn) -> None:
    naming = files_that_must_name(one)
    assert one.registry in naming
    others = naming - {one.registry}
    assert len(others) <= one.most_elsewhere, f"{one.kind} {one.name} is named in {sorted(others)} too"
    assert len(files_of_its_own(one)) + 1 <= GOALS[one.kind]


FIELDS = {field.name for config in (CommConfig, MpiConfig, PsConfig) for field in dataclasses.fields(config)} - {
    "name",
    "routes",
    "mpi",
    "ps",
}


def fields_named(text: str) -> set[str]:
    """The fields of `comm` that a module declares, reads, or has as a key in its texts."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.AnnAssign):
            found.add(ast.unparse(node.target))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value.rpartition(".")[2])
    return found & FIELDS


def test_only_the_schema_names_all_fields_of_comm() -> None:
    """The second file of a field uses it. `CommOptions`, which is part of the plan, lacks the fields that only the
    launch needs."""
    assert len(FIELDS) > 10
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in package_files()}
    assert [file for file, text in texts.items() if fields_named(text) == FIELDS] == [
        file_of(import_module(CommConfig.__module__))
    ]


def test_no_module_names_an_optimizer() -> None:
    """The files of an optimizer are its class, which TensorFlow may have, and its choice."""
    classes = {target.rpartition(".")[2] for target in targets("optimizer").values()}
    assert len(classes) > 4
    for path in package_files():
        text = path.read_text(encoding="utf-8")
        assert not [one for one in classes if re.search(rf"\b{one}\b", text)], path


def test_what_names_something_is_found() -> None:
    """Otherwise the tests above could not fail."""
    text = '''
import parallax_runner.actions.one
from parallax_runner.actions import two
WHERE = "parallax_runner.launch.mine.Mine"
"""A text about parallax_runner.actions.three."""
'''
    assert set(names_in_python(text)) == {
        "parallax_runner.actions.one",
        "parallax_runner.actions.two",
        "parallax_runner.launch.mine.Mine",
    }
    assert fields_named('a = config.comm.sync\nb = rule("comm.ps.staleness")\ncompression: str = "off"\nd = sync') == {
        "sync",
        "staleness",
        "compression",
    }
