"""Which lines belong together, and which run when a module is imported."""

import textwrap

from tests.mutation.statements import import_lines, importers, statement_lines

SOURCE = textwrap.dedent("""\
    LIMIT = 3


    @cached
    def first(
        a: int,
        b: int = LIMIT,
    ) -> int:
        total = sum(
            [a, b]
        )
        if total > (
            LIMIT
        ):
            return total
        return 0


    class Thing:
        size = 1

        def grow(self) -> None:
            self.size += 1
    """)


def lines_with(*texts: str) -> set[int]:
    return {number for number, line in enumerate(SOURCE.splitlines(), 1) if any(text in line for text in texts)}


def test_a_line_stands_for_its_whole_statement():
    assert statement_lines(SOURCE, lines_with("[a, b]")) == {9, 10, 11}


def test_of_a_statement_with_a_body_only_the_header_counts():
    (line,) = lines_with("if total")
    assert statement_lines(SOURCE, {line + 1}) == {line, line + 1, line + 2}


def test_a_signature_includes_decorators():
    assert statement_lines(SOURCE, lines_with("b: int")) == {4, 5, 6, 7, 8}


def test_lines_outside_of_functions_run_at_import():
    expected = lines_with("LIMIT = 3", "@cached", "def", "class", "size = 1") | {6, 7, 8}
    assert import_lines(SOURCE) == expected


def test_importers_are_found_by_module_and_by_name():
    found = importers(
        {
            "p/__init__.py": "",
            "p/a.py": "from p import b",
            "p/b.py": "import p.c",
            "p/c.py": "def f():\n    from p.b import g",
        }
    )
    assert found["p/b.py"] == {"p/a.py", "p/c.py"}
    assert found["p/c.py"] == {"p/b.py"}
    assert found["p/a.py"] == set()
