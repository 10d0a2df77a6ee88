"""Completion in bash for `python -m parallax_runner`; Hydra's own knows scripts and installed commands only."""

import os
import re
from collections.abc import Sequence

INSTALL = "install=bash"
UNINSTALL = "uninstall=bash"
# Hydra's query takes the whole line and prints every word that may stand at its end.
BASH = r"""_parallax_runner() {
    local line=${COMP_LINE:0:COMP_POINT} command found word=${COMP_WORDS[COMP_CWORD]} prefix
    COMPREPLY=()
    [[ $line =~ ^[[:space:]]*([^[:space:]]+[[:space:]]+-m[[:space:]]+parallax_runner)[[:space:]] ]] || return 0
    command=${BASH_REMATCH[1]}
    word=${line##*[[:space:]]}
    found=$(COMP_LINE="$line" COMP_POINT=$COMP_POINT $command --shell-completion query=bash 2>/dev/null) || return 0
    COMPREPLY=($(compgen -W "$found" -- "$word"))
    # Where = and : part words, bash completes only what stands behind the last of them.
    prefix=${word%"${word##*[=:]}"}
    [[ $COMP_WORDBREAKS == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
    return 0
}
complete -o nospace -o default -F _parallax_runner python python3"""
REMOVE = "complete -r python python3; unset -f _parallax_runner"


def script(overrides: Sequence[str]) -> str | None:
    """What `--shell-completion` prints for a bash that is to learn, or to forget; None where Hydra answers."""
    return {INSTALL: BASH, UNINSTALL: REMOVE}.get(overrides[0]) if len(overrides) == 1 else None


def show_hydra_a_line_it_knows() -> None:
    """Changes the line that is to be completed from `python -m parallax_runner …` to that of an installed command."""
    line = os.environ.get("COMP_LINE", "")
    os.environ["COMP_LINE"] = re.sub(r"^\s*\S+\s+-m\s+parallax_runner\b", "parallax_runner", line)
