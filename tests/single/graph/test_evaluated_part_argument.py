"""A data function is told for which part the run computes a loss."""

from types import SimpleNamespace
from typing import Any

import pytest

from parallax_runner.config.schema import ReadConfig
from parallax_runner.graph.evaluated_part_argument import evaluated_part_argument


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
    assert evaluated_part_argument(with_parameter, config_of(action, part)) == {"evaluated_part": expected}


def test_only_a_function_that_asks_is_told() -> None:
    assert evaluated_part_argument(without_parameter, config_of("train")) == {}
    assert evaluated_part_argument(with_parameter, config_of("train", evaluated_part="test")) == {}
    assert evaluated_part_argument(print, config_of("train")) == {}
