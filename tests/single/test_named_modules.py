"""Which modules are named by no test file. A stranger who changes such a module must search for its tests, or use
`scripts/test --of`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
# How many modules were named by no test file on 2026-11-28. This number may only fall.
MOST_UNNAMED = 189
DOTTED = re.compile(r"parallax_runner(?:\.\w+)+")
IMPORT = re.compile(r"from (parallax_runner(?:\.\w+)*) import (\([^)]*\)|[^\n]+)")


def named_in(texts: Iterable[str]) -> set[str]:
    """The dotted names of the package in texts, also those of `from` imports."""
    found: set[str] = set()
    for text in texts:
        found.update(DOTTED.findall(text))
        for module, names in IMPORT.findall(text):
            found.update(f"{module}.{name}" for name in re.findall(r"\w+", names))
    return found


def unnamed(modules: Iterable[str], names: set[str]) -> list[str]:
    """The modules that are not among the names. What a module contains names the module."""
    known = {".".join(name.split(".")[:length]) for name in names for length in range(1, name.count(".") + 2)}
    return [module for module in modules if module not in known]


def test_no_more_modules_are_named_by_no_test() -> None:
    paths = [path.relative_to(ROOT).with_suffix("") for path in sorted((ROOT / "parallax_runner").rglob("*.py"))]
    modules = [".".join(path.parts) for path in paths if path.name != "__init__"]
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    found = unnamed(modules, named_in(texts))
    assert len(found) <= MOST_UNNAMED, "named by no test file:\n" + "\n".join(found)


def test_a_module_that_is_named_by_no_test_is_found() -> None:
    """Otherwise the test above could not fail."""
    names = named_in(
        [
            "from parallax_runner.plan import (\n    plan,\n    comm_options as options,\n)",
            "parallax_runner.shard.create",
        ]
    )
    modules = ["parallax_runner.plan.plan", "parallax_runner.plan.other", "parallax_runner.shard"]
    assert unnamed(modules, names) == ["parallax_runner.plan.other"]
