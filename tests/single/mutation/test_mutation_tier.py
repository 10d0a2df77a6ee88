"""Slow tests count only where all tests do."""

from tests.mutation.tier import in_tier
from tests.tiers import SlowTests

SLOW = [SlowTests("tests/integration/test_a.py::test_long", 60.0, ())]


def test_the_default_tier_is_without_slow_tests():
    assert not in_tier("default", "tests/integration/test_a.py::test_long[ps]", SLOW)
    assert in_tier("default", "tests/integration/test_a.py::test_short", SLOW)
    assert in_tier("all", "tests/integration/test_a.py::test_long[ps]", SLOW)
