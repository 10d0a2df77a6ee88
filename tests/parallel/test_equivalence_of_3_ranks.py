"""The cases of three ranks, in a separate file so that another xdist process launches them."""

import pytest

from parallax_runner.plan.plan import Route
from tests.parallel.cases import Case
from tests.parallel.conftest import Launches
from tests.parallel.matrix import MATRIX
from tests.parallel.test_equivalence import (
    Step,
    test_dense_gradients_leave_in_buckets,
    test_equals_one_device,
    test_equals_untouched_tensorflow_that_updates_by_hand,
    test_owners_of_rows_get_and_send_no_more_than_planned,
    test_ranks_agree,
    test_ranks_with_different_numbers_of_examples_equal_one_device_with_all,
    test_several_passes_equal_one_pass_of_one_device_over_all_examples,
    test_short_products_differ_from_one_device_with_all_examples_by_their_rounding,
    test_sparse_gradients_travel_by_allgatherv,
    test_variables_of_16_bits_differ_from_one_device_by_rounding,
    test_what_travels_in_16_bits_is_rounded_and_no_more,
    test_what_was_cut_anew_is_saved_as_one_device_would,
)
from tests.parallel.test_equivalence_of_keras import test_equals_plain_keras

RANKS = 3

pytestmark = pytest.mark.timeout(1800)  # the first test waits for the launch

__all__ = [
    "test_dense_gradients_leave_in_buckets",
    "test_equals_one_device",
    "test_equals_plain_keras",
    "test_equals_untouched_tensorflow_that_updates_by_hand",
    "test_owners_of_rows_get_and_send_no_more_than_planned",
    "test_ranks_agree",
    "test_ranks_with_different_numbers_of_examples_equal_one_device_with_all",
    "test_several_passes_equal_one_pass_of_one_device_over_all_examples",
    "test_short_products_differ_from_one_device_with_all_examples_by_their_rounding",
    "test_sparse_gradients_travel_by_allgatherv",
    "test_variables_of_16_bits_differ_from_one_device_by_rounding",
    "test_what_travels_in_16_bits_is_rounded_and_no_more",
    "test_what_was_cut_anew_is_saved_as_one_device_would",
]


@pytest.mark.cases([case for case in MATRIX if (case.comm, case.model) == ("sharded", "two_waves")])
def test_rows_of_two_dtypes_travel_in_one_exchange(case: Case, launched: Launches) -> None:
    dtypes = {variable.dtype for variable in case.plan(case.single()).by_route(Route.ALLTOALL)}
    assert dtypes == {"float32", "float64"}
    ops = Step.of(case, launched).ops
    pushes = [name for _, type_, name in ops if type_ == launched.ops.all_to_all and "to_owners" in name]
    assert len(pushes) == 1, pushes
