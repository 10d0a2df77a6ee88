"""Reads the comments on keys from YAML files and dataclasses."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parallax_runner.config.structured import group_in

OTHER_NAMES = "# Other names:"
KEY = re.compile(r"^( *)([\w.]+):(?: |$)")
TRAILING = re.compile(r"\s#\s(.*)$")


def head_comment(text: str) -> str:
    """Returns the comment at the top of a YAML file, without the lines that a program reads."""
    return _joined(line for line in _head(text).splitlines() if not line.startswith(("# @package", OTHER_NAMES)))


def listed_names(text: str) -> list[str]:
    """Returns the other names of a choice, which the comment at the top of its file lists."""
    lines = [line for line in _head(text).splitlines() if line.startswith(OTHER_NAMES)]
    return [name.strip() for line in lines for name in line.removeprefix(OTHER_NAMES).split(",")]


def key_comments(text: str) -> dict[str, str]:
    """Returns the comment on each dotted key of a YAML file: the comment lines above the key and the comment after its
    value."""
    body = text[len(_head(text)) :]
    found: dict[str, str] = {}
    above: list[str] = []
    path: list[tuple[int, str]] = []
    for line in body.splitlines():
        if line.lstrip().startswith("#"):
            above.append(line)
            continue
        key = KEY.match(line)
        if key:
            indent = len(key[1])
            path = [(depth, name) for depth, name in path if depth < indent] + [(indent, key[2])]
            behind = TRAILING.search(line)
            comment = _joined([*above, *([f"# {behind[1]}"] if behind else [])])
            if comment:
                found[".".join(name for _, name in path)] = comment
        above = []
    return found


def class_comments(kind: Any, prefix: str = "") -> dict[str, str]:
    """Returns the comment on each field of a dataclass and its nested dataclasses, by dotted name."""
    source = textwrap.dedent(inspect.getsource(kind))
    comments = _SourceComments.of(source)
    found: dict[str, str] = {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    for statement in definition.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        comment = comments.on(statement)
        if comment:
            found[prefix + statement.target.id] = comment
    for entry in dataclasses.fields(kind):
        inner = entry.type if dataclasses.is_dataclass(entry.type) else group_in(entry.type)
        if inner is not None:
            found |= class_comments(inner, f"{prefix}{entry.name}.")
    return found


@dataclasses.dataclass(frozen=True)
class _SourceComments:
    """The comments in Python source, by line number. Line numbers start at 1."""

    lines: Sequence[str]
    by_line: Mapping[int, str]

    @classmethod
    def of(cls, source: str) -> _SourceComments:
        by_line: dict[int, str] = {}
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                by_line[token.start[0]] = token.string
        return cls(source.splitlines(), by_line)

    def on(self, statement: ast.stmt) -> str:
        """Returns the text of the comment lines above a statement and of the comment after it."""
        comments: list[str] = []
        number = statement.lineno - 1
        while number in self.by_line and self.lines[number - 1].lstrip().startswith("#"):
            comments.insert(0, self.by_line[number])
            number -= 1
        behind = self.by_line.get(statement.end_lineno or 0)
        if behind is not None:
            comments.append(behind)
        return _joined(comments)


def _head(text: str) -> str:
    found = re.match(r"(?:#.*\n)*", text)
    return found[0] if found else ""


def _joined(lines: Iterable[str]) -> str:
    """Joins comment lines into one string."""
    return " ".join(line.strip().removeprefix("#").strip() for line in lines)
