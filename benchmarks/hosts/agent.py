"""Replaces ssh between the hosts of a benchmark: `agent.py ADDRESS=PID,… [ssh's options] ADDRESS COMMAND…`.

Run this file by its path, as `python -I -S agent.py`. It imports only the standard library. Like ssh, it joins the
words of the command with blanks and passes the result to a shell on the host. It also passes on input, output and exit
status. The command gets a minimal environment, as after a login.
"""

import os
import sys
from collections.abc import Sequence

# The options of ssh that have a value.
WITH_VALUE = frozenset("BbcDEeFIiJLlmOoPpQRSWw")
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR")
UNREACHABLE_STATUS = 255


def split(words: Sequence[str]) -> tuple[str, list[str]]:
    """Splits the arguments of ssh into the host and the command."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if len(option) == 2 and option[1] in WITH_VALUE and rest:
            rest.pop(0)
    if not rest:
        raise ValueError("no host given")
    return rest[0], rest[1:]


def command_on(where: str, address: str, command: Sequence[str]) -> list[str]:
    """Returns the command line that runs `command` on the host with the address `address`.

    `where` lists all hosts. Raises KeyError if the host is not in it.
    """
    pids = dict(one.split("=") for one in where.split(","))
    shell = ["sh", "-c", " ".join(command)]
    return ["nsenter", "--target", pids[address], "--net", "--uts", *shell]


def main(arguments: Sequence[str]) -> int:
    """Replaces this process with the command. Returns 255, like ssh, if the host does not exist."""
    where, *words = arguments
    try:
        address, command = split(words)
        argv = command_on(where, address, command)
    except (KeyError, ValueError) as error:
        print(f"agent: no such host: {error}", file=sys.stderr)
        return UNREACHABLE_STATUS
    os.execvpe(argv[0], argv, {name: os.environ[name] for name in KEPT if name in os.environ})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
