"""A quoted path comes back from Hydra as it was, as a string."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from parallax_runner.config.hydra_quotes import quoted

PATHS = ["/a/b", "/a b/c=d,e", "/x[1]", "/it's", "/a\\b", "/a\\'b", "/ends in \\", "runs", "null", "True", "010", "1e5"]


@pytest.mark.parametrize("path", PATHS)
def test_quoted_path_is_one_value(path: str) -> None:
    (override,) = OverridesParser.create().parse_overrides([f"hydra.sweep.dir={quoted(path)}"])
    assert override.value() == path


@pytest.mark.parametrize("path", ["runs", "runs/2026-01-31/10-33", "multirun/comm-mpi+train.seed-1"])
def test_ordinary_paths_stay_without_quotes(path: str) -> None:
    assert quoted(path) == path
