"""What several plans of one run share."""

from __future__ import annotations

from typing import Any

import pytest

from parallax_runner.analysis import classify as analysis
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver import make_plan
from tests.single.small_models import captured


def test_a_graph_is_analyzed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan, the advice and a search of partitions need the same analysis."""
    analyzed: list[Any] = []
    classify = analysis.classify

    def noted(single: Any) -> Any:
        analyzed.append(single)
        return classify(single)

    monkeypatch.setattr(analysis, "classify", noted)
    first, second = captured(), captured(optimizer="adam")
    config = RunConfig()
    found = [make_plan._variables_of(config, single) for single in (first, first, second, first)]
    assert found[0] is found[1] and found[0] == found[3] != found[2]
    assert [id(one) for one in analyzed] == [id(one) for one in (first, second, first)]
