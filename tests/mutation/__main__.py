"""`python -m tests.mutation`: what scripts/mutate runs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatch

from tests.mutation import tier, tree
from tests.mutation.covered import RecordedTest, UnitRecord, load_record
from tests.mutation.faults import Fault, load_faults
from tests.mutation.hunt import DoesNotImport, Hunter
from tests.mutation.places import FAULTS, FOLDER, RECORD, RESULTS
from tests.mutation.recording import record_units, units_of
from tests.mutation.results import Result, Results, digest_of, table
from tests.tiers import slow_tests


def main() -> None:
    """Records, tries faults, or prints the table of what was tried."""
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("names", nargs="*", help="faults to try, as names or patterns; with --record: test files")
    parser.add_argument("--record", action="store_true", help="record which lines each test executes; can be continued")
    parser.add_argument("--table", action="store_true", help="only print the table of results")
    parser.add_argument("--tier", choices=tier.TIERS, default="all", help="the tests that count")
    chosen = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    if chosen.record:
        record_units(units_of(chosen.names or ["tests"]))
        return
    if not RECORD.exists():
        sys.exit("mutate: nothing is recorded: scripts/mutate --record")
    units = load_record(RECORD, FOLDER / "sources")
    faults = [fault for fault in load_faults(FAULTS) if _is_chosen(fault, chosen.names)]
    slow = slow_tests()
    for name in sorted(name for unit in units for name in unit.left_out):
        print(f"left out, since it failed while it was recorded: {name}")
    of_fault = {
        fault.name: [test for test in tests_of(fault, units) if tier.in_tier(chosen.tier, test.name, slow)]
        for fault in faults
    }
    results = Results(RESULTS)
    if not chosen.table:
        _try_all(faults, of_fault, results)
    print(table(faults, [results.of(fault, {test.name for test in of_fault[fault.name]}) for fault in faults]))


def tests_of(fault: Fault, units: Sequence[UnitRecord]) -> list[RecordedTest]:
    """The tests that execute the fault's line."""
    found: list[RecordedTest] = []
    for unit in units:
        try:
            found += unit.tests_of(fault)
        except ValueError as error:
            print(f"{error}: record {unit.tests[0].file if unit.tests else 'its tests'} again")
    return found


def _is_chosen(fault: Fault, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch(fault.name, pattern) for pattern in patterns)


def _try_all(faults: Sequence[Fault], of_fault: dict[str, list[RecordedTest]], results: Results) -> None:
    todo = [fault for fault in faults if results.of(fault, {test.name for test in of_fault[fault.name]}) is None]
    if todo:
        tree.make_copy()
    hunter = Hunter()
    for fault in todo:
        tests = of_fault[fault.name]
        print(f"{fault.name}: {len(tests)} tests execute it ...", flush=True)
        start = time.monotonic()
        try:
            found, how = hunter.hunt(fault, tests), f"{len(tests)} tests pass"
        except DoesNotImport as error:
            found, how = None, str(error)
        tried = digest_of(test.name for test in tests)
        secs = time.monotonic() - start
        by, how = (found.by, found.how) if found else (None, how)
        results.add(Result(fault.name, fault.digest, tried, found is not None, by, how, secs))
        print(f"{fault.name}: {f'found by {by} ({how})' if found else f'NOT FOUND, {how}'}, {secs:.0f} s", flush=True)


if __name__ == "__main__":
    main()
