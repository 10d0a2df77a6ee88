"""Functions are simple enough to read: the number of branches in a function is limited."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import parallax_runner

PACKAGE = Path(parallax_runner.__file__).parent
# Lower these bounds whenever the package reaches less.
MOST = 15
SOME = 29
MANY_BRANCHES = 10

BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def complexity(function: Function) -> int:
    """Returns 1 plus the number of branches in a function.

    In contrast to ruff's C901, the operands of `and` and `or`, conditional expressions and comprehensions count too,
    because a reader must follow them as well. `a and b and c` counts 2, and a comprehension counts 1 plus 1 for each of
    its conditions. The functions inside the function count, because they are read with it.
    """
    found = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCHES):
            found += 1
        elif isinstance(node, ast.BoolOp):
            found += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            found += 1 + len(node.ifs)
    return found


def functions(source: str) -> Iterator[Function]:
    """Yields the functions and methods in a source, including those inside others."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            yield node


@cache
def measured() -> dict[str, int]:
    """Returns the complexity of each function of the package, by file, line and name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for function in functions(path.read_text(encoding="utf-8")):
            place = f"{path.relative_to(PACKAGE)}:{function.lineno} {function.name}"
            found[place] = complexity(function)
    return found


PLANTED = """
class Reader:
    async def read(self, lines, limit):
        def is_kept(line):
            return line and not line.startswith("#") or line == "#!"

        try:
            kept = [line for line in lines if is_kept(line) if len(line) < limit]
        except TypeError:
            kept = []
        while kept and limit:
            limit -= 1
        return kept if limit else None
"""


def test_the_counter_finds_a_complex_function():
    outer, inner = functions(PLANTED)
    assert (inner.name, complexity(inner)) == ("is_kept", 3)
    # 1, the inner function's 2, the comprehension with two conditions, the handler, the loop with its `and`, and the
    # conditional expression.
    assert (outer.name, complexity(outer)) == ("read", 1 + 2 + 3 + 1 + 2 + 1)


def test_a_function_without_branches_counts_one():
    (function,) = functions("def work(x):\n    with x:\n        return x + 1\n")
    assert complexity(function) == 1


def test_no_function_is_too_complex():
    too_complex = {place: number for place, number in measured().items() if number > MOST}
    assert not too_complex, f"divide these functions, or simplify them: {too_complex}"


def test_few_functions_have_many_branches():
    many = {place: number for place, number in measured().items() if number > MANY_BRANCHES}
    worst_first = sorted(many.items(), key=lambda item: -item[1])
    assert len(many) <= SOME, f"{len(many)} functions have more than {MANY_BRANCHES} branches: {worst_first}"
