"""How Horovod is started, each time in a process of its own: rank 0 of 1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import os, sys
from parallax_runner.rewrite import collectives
assert collectives.init(lengths_vary=sys.argv[1] == "vary") == (0, 1)
print(os.environ.get("HOROVOD_CACHE_CAPACITY"))
"""


@pytest.mark.parametrize(
    ("lengths", "users", "found"),
    [("vary", None, "0"), ("fixed", None, "None"), ("vary", "512", "512")],
)
def test_horovod_has_no_cache_where_it_would_be_asked_in_vain(lengths: str, users: str | None, found: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "HOROVOD_CACHE_CAPACITY"}
    env |= {} if users is None else {"HOROVOD_CACHE_CAPACITY": users}
    result = subprocess.run([sys.executable, "-c", PROGRAM, lengths], capture_output=True, text=True, cwd=ROOT, env=env)
    assert (result.returncode, result.stdout.split()) == (0, [found]), result.stderr
