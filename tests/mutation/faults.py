"""The list of faults, and where each is in a source text."""

from __future__ import annotations

import ast
import hashlib
import tomllib
from dataclasses import astuple, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """A small change of one place in the package; `breaks` says what a user would notice."""

    name: str
    file: str
    old: str
    new: str
    breaks: str

    @property
    def digest(self) -> str:
        """Changes with the fault."""
        return hashlib.sha256(repr(astuple(self)).encode()).hexdigest()

    @property
    def package(self) -> str:
        """The name of the package within `parallax_runner`."""
        return Path(self.file).parent.name

    def is_in(self, source: str) -> bool:
        """Whether the source has the fault's text exactly once."""
        return source.count(self.old) == 1

    def applied_to(self, source: str) -> str:
        """The source with the fault. Raises ValueError where its place is not clear, or the result is not Python."""
        if not self.is_in(source):
            raise ValueError(
                f"fault «{self.name}»: {self.file} has the old text {source.count(self.old)} times, not once"
            )
        broken = source.replace(self.old, self.new)
        ast.parse(broken)
        return broken

    def lines_in(self, source: str) -> range:
        """The numbers of the lines that the old text touches."""
        first = source[: source.index(self.old)].count("\n") + 1
        return range(first, first + self.old.rstrip("\n").count("\n") + 1)


def load_faults(path: Path) -> list[Fault]:
    """All faults of a TOML file. Raises ValueError where two have one name."""
    faults = [Fault(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]]
    names = [fault.name for fault in faults]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(f"more than one fault has the name {', '.join(doubled)}")
    return faults
