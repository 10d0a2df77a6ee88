"""`python -m tests.mutation.of_file FILE…`: prints the tests that execute the files, for `scripts/test --of`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.covered import UnitRecord, load_record
from tests.mutation.places import FOLDER, RECORD, ROOT


def main(files: Sequence[str]) -> None:
    """Prints one test a line. Exits with a message if nothing is recorded, or no test executes the files."""
    for file in files:
        if not (ROOT / file).is_file():
            sys.exit(f"scripts/test --of {file}: no such file in {ROOT}")
    if not RECORD.exists():
        sys.exit("scripts/test --of: nothing is recorded; run scripts/mutate --record first")
    found = tests_of_files(load_record(RECORD, FOLDER / "sources"), files)
    if not found:
        sys.exit(f"scripts/test --of {' '.join(files)}: no recorded test executes a function there")
    print("\n".join(found))


def tests_of_files(units: Sequence[UnitRecord], files: Sequence[str]) -> list[str]:
    """Returns the names of the tests that execute a function of one of the files and still exist, cheap ones first."""
    tests = {test.name: test for unit in units for file in files for test in unit.tests_within(file)}
    kept = [test for test in tests.values() if Path(ROOT / test.file).is_file()]
    return [test.name for test in sorted(kept, key=lambda test: test.alone_secs)]


if __name__ == "__main__":
    main(sys.argv[1:])
