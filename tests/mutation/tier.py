"""Which tests count: all, or those of the default tier (tests/slow.toml)."""

from __future__ import annotations

from tests.tiers import SlowTests

TIERS = ("default", "all")


def in_tier(tier: str, test: str, slow: list[SlowTests]) -> bool:
    """Whether a test, by its node id, is in the tier."""
    return tier == "all" or not any(entry.has(test) for entry in slow)
