"""Fixtures of the tests of routes."""

from tests.single.rewrite.conftest import mirrored

__all__ = ["mirrored"]
