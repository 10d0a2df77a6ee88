"""Replaces ssh between hosts that differ: `unlike_shell.py SETUPS AGENT… HOST COMMAND…`, see unlike_hosts.py.

Run this file by its path. It imports only the standard library.
"""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

AGENT_WORDS = 5  # of benchmarks.hosts.network.agent_command


def main(setups: str, words: Sequence[str]) -> None:
    """Replaces this process with the agent. `words` are its command line, a host, and the command. If `setups` contains
    commands for this host, the command sees what they change."""
    agent, address, command = words[:AGENT_WORDS], words[AGENT_WORDS], " ".join(words[AGENT_WORDS + 1 :])
    setup = json.loads(Path(setups).read_text()).get(address)
    if setup is not None:
        command = shlex.join(["unshare", "--mount", "sh", "-c", f'{setup} && exec sh -c "$1"', "sh", command])
    os.execv(agent[0], [*agent, address, command])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
