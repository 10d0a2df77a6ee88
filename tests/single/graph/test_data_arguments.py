"""A data function is told for which part the run computes a loss, and whether it reads rows."""

from types import SimpleNamespace
from typing import Any

import pytest

from parallax_runner.config.schema import ReadConfig
from parallax_runner.graph.data_arguments import data_arguments


def with_parameter(*, evaluated_part: str | None) -> None: ...


def without_parameter(*, part: str) -> None: ...


def config_of(action: str, part: str = "validation", **data: Any) -> Any:
    return SimpleNamespace(action=action, read=ReadConfig(part=part), data=data)


@pytest.mark.parametrize(
    ("action", "part", "expected"),
    [
        ("train", "validation", "validation"),
        ("verify", "validation", "validation"),
        ("evaluate", "test", "test"),
        ("evaluate", "train", "train"),
        ("predict", "test", None),
        ("export", "validation", None),
    ],
)
def test_the_action_decides(action: str, part: str, expected: str | None) -> None:
    assert data_arguments(with_parameter, config_of(action, part)) == {"evaluated_part": expected}


def reads(*, reads_rows: bool, evaluated_part: str | None) -> None: ...


def test_only_a_plan_reads_no_rows() -> None:
    found = {action: data_arguments(reads, config_of(action))["reads_rows"] for action in ("plan", "train", "predict")}
    assert found == {"plan": False, "train": True, "predict": True}


def test_only_a_function_that_asks_is_told() -> None:
    assert data_arguments(without_parameter, config_of("train")) == {}
    assert data_arguments(with_parameter, config_of("train", evaluated_part="test")) == {}
    assert data_arguments(print, config_of("train")) == {}
