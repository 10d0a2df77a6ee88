"""What a new run takes from the checkpoint of another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallax_runner.checkpoints.warm_start import Stored, Taken, Wanted, WarmStart, chosen, notes_on, warm_start
from parallax_runner.config.schema import TakeConfig
from parallax_runner.driver.warm_start import leave_warm_start
from parallax_runner.errors import CheckpointError, ConfigError

STORED = {
    "table": Stored((5, 2), "float32"),
    "tower/kernel": Stored((2, 2), "float64"),
    "tower/bias": Stored((2,), "float32"),
    "sgd/table_momentum": Stored((5, 2), "float32"),
    "sgd/iteration": Stored((), "int64"),
    "sgd/learning_rate": Stored((), "float32"),
}
WANTED = [
    Wanted("table", (5, 2), "float32"),
    Wanted("query/kernel", (2, 2), "float32"),
    Wanted("query/bias", (2,), "float32"),
    Wanted("new", (3,), "float32"),
    Wanted("sgd/table_momentum", (5, 2), "float32", is_of_optimizer=True),
    Wanted("sgd/iteration", (), "int64", is_of_optimizer=True),
    Wanted("sgd/learning_rate", (), "float32", is_of_optimizer=True, is_set=True),
]


def taken(**take: Any) -> dict[str, str]:
    found = warm_start("day1", STORED, WANTED, TakeConfig(**take))
    names = [one.name for one in WANTED]
    assert sorted([*found.fresh, *(one.name for one in found.taken)]) == sorted(names)
    assert sorted([*found.ignored, *{one.source for one in found.taken}]) == sorted(STORED)
    return {one.name: one.source for one in found.taken}


@pytest.mark.parametrize(
    ("take", "expected"),
    [
        ({}, ["table", "sgd/table_momentum", "sgd/iteration"]),
        ({"slots": False}, ["table"]),
        ({"include": ("ta*", "sgd/it*")}, ["table", "sgd/iteration"]),
        ({"exclude": ("*table*",)}, ["sgd/iteration"]),
        ({"include": ("sgd/*",), "exclude": ("*iteration",)}, ["sgd/table_momentum"]),
    ],
)
def test_variables_are_taken_by_name_but_the_learning_rate_is_set(take: dict[str, Any], expected: list[str]) -> None:
    assert taken(**take) == {name: name for name in expected}


GROWING = [
    Wanted("items/rows", (5, 2), "float32", owner="items/rows"),
    *(Wanted(f"items/{name}", (5,), "int32", owner=f"items/{name}", map_of="items/rows") for name in ("keys", "fill")),
    Wanted("sgd/items_rows_momentum", (5, 2), "float32", is_of_optimizer=True, owner="items/rows"),
    Wanted("other", (2,), "float32", owner="other"),
]
OF_GROWING = [one.name for one in GROWING]


@pytest.mark.parametrize(
    ("take", "expected"),
    [
        ({}, OF_GROWING),
        ({"include": ("items/rows",)}, OF_GROWING[:3]),
        ({"exclude": ("items/rows",)}, ["other"]),
        ({"exclude": ("items/keys",)}, OF_GROWING),
        ({"include": ("items/keys", "other")}, ["other"]),
        ({"include": ("sgd/*", "other")}, ["other"]),
        ({"slots": False}, [*OF_GROWING[:3], "other"]),
        ({"rename": ("items/:old/", "other:another")}, []),
    ],
)
def test_rows_and_the_map_of_a_vocabulary_are_taken_together(take: dict[str, Any], expected: list[str]) -> None:
    stored = {one.name: Stored(one.shape, one.dtype) for one in GROWING}
    assert list(chosen("day1", stored, GROWING, TakeConfig(**take))) == expected


def test_rows_without_their_map_are_refused() -> None:
    stored = {one.name: Stored(one.shape, one.dtype) for one in GROWING if one.name != "items/fill"}
    with pytest.raises(CheckpointError, match=r"has «items/rows» for «items/rows» but no «items/fill».* add ckpt.take"):
        chosen("day1", stored, GROWING, TakeConfig())


def test_names_and_scopes_are_renamed() -> None:
    found = taken(slots=False, rename=("tower/:query/",))
    assert found == {"table": "table", "query/kernel": "tower/kernel", "query/bias": "tower/bias"}
    assert taken(slots=False, rename=("tower/bias:query/bias", "table:other")) == {"query/bias": "tower/bias"}


def test_a_tensor_with_another_dtype_is_converted() -> None:
    found = warm_start("day1", STORED, WANTED, TakeConfig(rename=("tower/:query/",), include=("query/kernel",)))
    assert found.taken == (Taken("query/kernel", "tower/kernel", "float64"),)


@pytest.mark.parametrize(
    ("take", "said"),
    [
        ({"rename": ("gone/:query/",)}, r"rename=gone/:query/: the checkpoint has no variable «gone/»"),
        ({"rename": ("tower",)}, r"rename=tower: expected OLD:NEW"),
        ({"rename": ("tower/:",)}, r"expected OLD:NEW"),
        ({"include": ("quer",)}, r"take\.include=quer: no variable matches this pattern; the model has «table»"),
        ({"exclude": ("gone*",)}, r"take\.exclude=gone\*: no variable matches"),
        ({"include": ("new",)}, r"no variable of the model is taken from day1, which contains «sgd/iteration»"),
    ],
)
def test_what_matches_nothing_is_refused(take: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        taken(**take)


def test_another_shape_is_refused_with_the_way_out() -> None:
    wanted = [Wanted("table", (7, 2), "float32"), Wanted("sgd/iteration", (), "int64")]
    with pytest.raises(CheckpointError, match=r"\[5, 2\] .* \[7, 2\] .*add ckpt.take.exclude=\['table'\]"):
        warm_start("day1", STORED, wanted, TakeConfig())
    assert warm_start("day1", STORED, wanted, TakeConfig(exclude=("table",))).fresh == ("table",)


def test_the_notes_name_everything_and_the_file_keeps_it(tmp_path: Path) -> None:
    found = warm_start("day1", STORED, WANTED, TakeConfig(rename=("tower/:query/",)))
    text = " ".join(notes_on(found))
    assert "takes «table», «query/kernel», «query/bias»" in text
    assert "renamed «query/kernel» from «tower/kernel»" in text
    assert "«new», «sgd/learning_rate» keep their own initial values" in text
    assert "ignores «sgd/learning_rate» of the checkpoint" in text
    one_is_new = [one for one in WANTED if one.name != "new"]
    text = " ".join(notes_on(warm_start("day1", STORED, one_is_new, TakeConfig(rename=("tower/:query/",)))))
    assert "«sgd/learning_rate» keeps its own initial value" in text
    leave_warm_start(found, tmp_path)
    assert WarmStart.load(tmp_path) == found
    leave_warm_start(None, tmp_path)
    assert not list(tmp_path.iterdir())
