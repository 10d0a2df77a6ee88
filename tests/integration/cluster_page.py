"""The commands and scripts of docs/clusters.md, by section: tests/integration/test_cluster_page.py and ssh_hosts.py run
them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"
HOSTS = "Hosts over ssh"
# Sections whose commands need a scheduler, or processes beside each other. test_readme.py runs all other commands.
LOGIN_NODE = "From a login node"
ALLOCATION = "In an allocation"
SWEEPS = "Sweeps"
MANUAL = "Processes that you start"
TENSORFLOW = "Processes started with TF_CONFIG or ClusterSpec flags"
PADDLE = "Processes started with Paddle flags"
CAFFE2 = "Processes started as Caffe2 shards"
SECTIONS = (LOGIN_NODE, ALLOCATION, SWEEPS, MANUAL, TENSORFLOW, PADDLE, CAFFE2)


def scripts(section: str, places: Mapping[str, str] = MappingProxyType({}), language: str = "python") -> list[str]:
    """Returns the blocks of a section, without those of its subsections. `places` replaces the page's paths, hosts and
    ports with those of a test."""
    _, *parts = re.split(r"^##+ (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = dict(zip(parts[::2], parts[1::2], strict=True))[section]
    for there, here in places.items():
        assert there in text, f"{section} has no {there}"
        text = text.replace(there, here)
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(section: str, places: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Returns the commands of a section, a line each."""
    return "".join(scripts(section, places, "sh")).replace("\\\n", "").splitlines()
