"""How Horovod is started, each time in a process of its own: rank 0 of 1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PROGRAM = """
import os, sys
from parallax_runner.collectives.horovod.ops import OPS
assert OPS.join(lengths_vary="vary" in sys.argv, may_fuse="fuse" in sys.argv) == (0, 1)
print(*map(os.environ.get, ("HOROVOD_CACHE_CAPACITY", "HOROVOD_DISABLE_GROUP_FUSION")))
"""


def environment_of_horovod(lengths: str, **users: str) -> list[str]:
    """The two variables of a process that has started Horovod, where the user has set only these."""
    ours = {"HOROVOD_CACHE_CAPACITY", "HOROVOD_DISABLE_GROUP_FUSION"}
    env = {name: value for name, value in os.environ.items() if name not in ours} | users
    result = subprocess.run([sys.executable, "-c", PROGRAM, lengths], capture_output=True, text=True, cwd=ROOT, env=env)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.mark.parametrize(
    ("lengths", "users", "found"),
    [("vary", {}, "0"), ("fixed", {}, "None"), ("vary", {"HOROVOD_CACHE_CAPACITY": "512"}, "512")],
)
def test_horovod_has_no_cache_where_it_would_be_asked_in_vain(lengths: str, users: dict[str, str], found: str) -> None:
    assert environment_of_horovod(lengths, **users)[0] == found


def test_horovod_fuses_no_bucket_with_others_unless_it_may_or_the_user_says_so() -> None:
    assert environment_of_horovod("fixed")[1] == "1"
    assert environment_of_horovod("fuse")[1] == "None"
    assert environment_of_horovod("fixed", HOROVOD_DISABLE_GROUP_FUSION="0")[1] == "0"
