"""Shell completion in bash, zsh and fish for `parallax` and `python -m parallax_runner`.

Hydra's own scripts do not support `python -m`. The scripts in this module call Hydra's completion query, which reads
the whole line and prints all candidates for the last word.
"""

import os
import re
from collections.abc import Sequence

BASH = r"""_parallax_runner() {
    local line=${COMP_LINE:0:COMP_POINT} command found word=${COMP_WORDS[COMP_CWORD]} prefix
    local start='^[[:space:]]*(([^[:space:]]*/)?parallax|[^[:space:]]+ +-m +parallax_runner)[[:space:]]'
    COMPREPLY=()
    [[ $line =~ $start ]] || return 0
    command=${BASH_REMATCH[1]}
    word=${line##*[[:space:]]}
    found=$(COMP_LINE="$line" COMP_POINT=$COMP_POINT $command --shell-completion query=bash 2>/dev/null) || return 0
    COMPREPLY=($(compgen -W "$found" -- "$word"))
    # Where = and : separate words, bash completes only the text after the last of these characters.
    prefix=${word%"${word##*[=:]}"}
    [[ $COMP_WORDBREAKS == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
    return 0
}
complete -o nospace -o default -F _parallax_runner parallax python python3"""
ZSH = r"""_parallax_runner() {
    local line
    local -a program found
    if [[ ${words[1]:t} == parallax ]]; then
        program=("${words[1]}")
    elif [[ $CURRENT -gt 3 && ${words[2]} == -m && ${words[3]} == parallax_runner ]]; then
        program=("${(@)words[1,3]}")
    else
        (( $+functions[_python] )) && _python || _default
        return
    fi
    line="${(j: :)words[1,CURRENT-1]} $PREFIX"
    found=(${=$(COMP_LINE=$line COMP_POINT=${#line} $program --shell-completion query=bash 2>/dev/null)})
    compadd -S "" -- $found
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
compdef _parallax_runner parallax python python3"""
FISH = r"""function _parallax_runner
    set -l line (commandline -cp | string collect)
    set -l program (commandline -opc)
    if test (path basename -- "$program[1]") = parallax
        set program $program[1]
    else
        set program $program[1..3]
    end
    COMP_LINE="$line" COMP_POINT=(string length -- "$line") $program --shell-completion query=bash 2>/dev/null
end
complete -c parallax -f -a '(_parallax_runner)'
function _is_parallax_runner
    string match -qr '^\s*\S+\s+-m\s+parallax_runner\s' -- (commandline -cp)
end
complete -c python -n _is_parallax_runner -f -a '(_parallax_runner)'
complete -c python3 -n _is_parallax_runner -f -a '(_parallax_runner)'"""
FORGET_IN_FISH = """for name in parallax python python3
    complete -c $name -e
end
functions -e _parallax_runner _is_parallax_runner"""
SCRIPTS = {
    "install=bash": BASH,
    "uninstall=bash": "complete -r parallax python python3; unset -f _parallax_runner",
    "install=zsh": ZSH,
    "uninstall=zsh": "compdef -d parallax python python3; unfunction _parallax_runner",
    "install=fish": FISH,
    "uninstall=fish": FORGET_IN_FISH,
}


def script(overrides: Sequence[str]) -> str | None:
    """Returns the script that `--shell-completion` prints to install or uninstall completion. Returns None if Hydra
    handles the command."""
    return SCRIPTS.get(overrides[0]) if len(overrides) == 1 else None


def show_hydra_a_line_it_knows() -> None:
    """Replaces `python -m parallax_runner` in the command line to complete with the name of an installed command,
    because Hydra does not recognize `python -m`."""
    line = os.environ.get("COMP_LINE", "")
    os.environ["COMP_LINE"] = re.sub(r"^\s*\S+\s+-m\s+parallax_runner\b", "parallax_runner", line)
