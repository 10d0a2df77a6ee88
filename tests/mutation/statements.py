"""Lines of a source text: those of a statement, those that run when the module is imported, and who imports it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def statement_lines(source: str, lines: Iterable[int]) -> set[int]:
    """The lines of the statements that contain `lines`; of a statement with a body, its header.

    The interpreter reports only some lines of a statement that has several.
    """
    wanted, found = set(lines), set()
    for statement in _statements(ast.parse(source)):
        own = _own_lines(statement)
        if wanted & own:
            found |= own
    return found


def import_lines(source: str) -> set[int]:
    """The lines outside of functions, which run once in a process."""
    return _import_lines(ast.parse(source))


def _import_lines(node: ast.AST) -> set[int]:
    found: set[int] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            found |= _own_lines(child)
        if not isinstance(child, FUNCTIONS):
            found |= _import_lines(child)
    return found


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def _own_lines(statement: ast.stmt) -> set[int]:
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if not body:
        return set(range(first, (statement.end_lineno or first) + 1))
    start = body[0].pattern.lineno if isinstance(body[0], ast.match_case) else body[0].lineno
    return set(range(first, max(statement.lineno + 1, start)))


def importers(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """By module file, the files that import the module or a name of it."""
    found: dict[str, set[str]] = {file: set() for file in sources}
    for file, source in sources.items():
        for name in _imported(ast.parse(source)):
            path = name.replace(".", "/")
            for imported in (f"{path}.py", f"{path}/__init__.py"):
                if imported in found:
                    found[imported].add(file)
    return found


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (str(PurePosixPath(f"{node.module}.{alias.name}")) for alias in node.names)
