"""The variables from which tensors are computed."""

from __future__ import annotations

import dataclasses

from parallax_runner.analysis.variables_read import variables_read
from tests.single.small_models import captured, lookup_model


def test_neither_slots_nor_counters_are_read_by_a_validation() -> None:
    single = captured(lambda features: lookup_model(features, pieces=3), optimizer="adam")
    assert variables_read(single, single.fetched_in_validation) == ["table", "weights"]
    assert {"global_step", "beta1_power", "weights/Adam"} <= {one.full_name for one in single.variables}


def test_what_is_not_saved_is_left_out() -> None:
    single = captured()
    variables = tuple(dataclasses.replace(one, saved=one.name != "weights") for one in single.variables)
    assert variables_read(dataclasses.replace(single, variables=variables), [single.loss]) == ["table"]
