"""What ranks report about vocabularies that grow is added up."""

from __future__ import annotations

import dataclasses
from typing import Any

from parallax_runner.track.vocabularies import Vocabularies
from parallax_runner.train.growth import Growth

FIRST = Growth(capacity=512 * 4, places=4, keys=100, fullest=3, overflow=2, new_keys=30, steps=5)
SECOND = Growth(capacity=512 * 4, places=4, keys=60, fullest=2, overflow=1, new_keys=20, steps=5)


def reported(**tables: Growth) -> dict[str, dict[str, Any]]:
    return {table: dataclasses.asdict(one) for table, one in tables.items()}


def both(step: int = 5) -> Vocabularies:
    made = Vocabularies()
    emptier = dataclasses.replace(SECOND, fullest=1)
    made.add(1, step, reported(users=SECOND, items=emptier), workers=2)
    assert made.tables == {} and made.metrics() == {} and made.brief() == ""
    made.add(0, step, reported(users=FIRST, items=emptier), workers=2)
    return made


def test_the_state_is_that_of_all_ranks() -> None:
    expected = Growth(capacity=4096, places=4, keys=160, fullest=3, overflow=3, new_keys=50, steps=5)
    assert both().tables["users"] == expected
    metrics = both().metrics()
    assert metrics["vocabulary/users/keys"] == 160
    assert metrics["vocabulary/users/fill"] == 160 / 4096
    assert metrics["vocabulary/users/fill_of_fullest_bucket"] == 0.75
    assert metrics["vocabulary/users/new_keys_per_step"] == 10
    assert metrics["vocabulary/users/overflow"] == 3
    assert metrics["vocabulary/items/fill_of_fullest_bucket"] == 0.25
    assert len(metrics) == 10


def test_keys_that_wait_and_have_left_are_added_up() -> None:
    made = Vocabularies()
    first, second = (dataclasses.replace(one, waiting=7, evicted=2) for one in (FIRST, SECOND))
    for rank, one in enumerate((first, second)):
        made.add(rank, 5, reported(users=one), workers=2)
    assert made.metrics()["vocabulary/users/waiting_keys"] == 14
    assert made.metrics()["vocabulary/users/evicted_keys"] == 4
    assert "14 more keys wait for a row; 4 times, a key has lost its row; 3 times, a step" in made.lines()[0]


def test_the_table_with_the_fullest_bucket_is_shown() -> None:
    assert both().brief() == "users: 160 keys, 10 new/step, fullest bucket 75%, 3 overflows"
    assert both().lines()[0] == (
        "vocabulary of users: 160 keys in 4,096 rows (3.9%), the fullest bucket is 75% full; 3 times, a step saw a key "
        "without a row of its own"
    )


def test_reports_of_steps_that_run_again_are_dropped() -> None:
    made = Vocabularies()
    made.add(0, 5, reported(users=FIRST), workers=2)
    made.restart()
    made.add(1, 5, reported(users=SECOND), workers=2)
    assert made.tables == {}
    made.add(0, 5, reported(users=FIRST), workers=2)
    assert made.tables["users"].keys == 160


def test_a_run_without_such_tables_tells_nothing() -> None:
    made = Vocabularies()
    made.add(0, 5, {}, workers=1)
    assert made.lines() == [] and made.brief() == ""
