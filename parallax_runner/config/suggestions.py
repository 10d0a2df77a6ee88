"""Finds the name that a user most likely meant: a similar name, or this program's name for another program's word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from parallax_runner.config.comments import listed_names
from parallax_runner.config.location import conf_dir

# Words of other programs, in lower case without separators, that `nearest` does not match to this program's name for
# the last part of a key. The key may occur in several groups. The words for choices are in the choices' own files.
OTHER_KEYS = {
    **{"lr": "learning_rate", "rate": "learning_rate", "stepsize": "learning_rate"},
    **{"bs": "batch_size", "batch": "batch_size"},
    **{"numsteps": "steps", "maxsteps": "steps", "trainsteps": "steps", "iterations": "steps"},
    **{"numworkers": "workers", "worldsize": "workers", "nproc": "workers", "np": "workers"},
    **{"numservers": "servers", "numps": "servers", "hosts": "resource_info", "hostfile": "resource_info"},
    **{"outputdir": "run_dir", "outdir": "run_dir", "logdir": "run_dir"},
    **{"from": "resume", "restore": "resume", "restorefrom": "resume", "resumefrom": "resume"},
    **{"evaluate": "part", "split": "part", "subset": "part"},
}
# Words of other programs for what no key of this program expresses.
KEY_REMEDIES = {
    **dict.fromkeys(
        ("epochs", "numepochs", "maxepochs", "numtrainepochs"),
        "Set train.steps: an epoch is the number of examples divided by data.batch_size and by the workers.",
    ),
}
# Words for the formats that data=table reads.
_FORMATS = {
    **{"csv": "csv", "tsv": "tsv", "json": "jsonl", "jsonl": "jsonl", "jsonlines": "jsonl", "ndjson": "jsonl"},
    **{"parquet": "parquet", "arrow": "arrow", "feather": "arrow", "tfrecord": "tfrecord", "tfrecords": "tfrecord"},
}
# Remedies for names without a matching choice.
REMEDIES = {
    "data": {word: f"Use data=table data.format={format}." for word, format in _FORMATS.items()},
    "hydra/launcher": {"submititslurm": "Install this launcher's packages: pip install 'parallax-runner[slurm]'."},
}


def plain_word(word: str) -> str:
    """Returns the word in lower case without underscores, dashes or spaces."""
    return word.lower().replace("_", "").replace("-", "").replace(" ", "")


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """Returns the valid word that is most similar to `word`, ignoring case, or None if none is similar."""
    words = {other.lower(): other for other in valid}
    matches = difflib.get_close_matches(word.lower(), list(words), n=1, cutoff=0.5)
    return words[matches[0]] if matches else None


def remedy_for_choice(group: str, word: str, options: Sequence[str]) -> str | None:
    """Returns the remedy for a word that is not a choice of the group, or None if there is none."""
    plain = plain_word(word)
    choice = other_names(group).get(plain)
    if choice not in options:
        told = REMEDIES.get(group, {}).get(plain)
        if told is not None:
            return told
        choice = nearest(word, options)
    return None if choice is None else f"Did you mean {group}={choice}?"


def remedy_for_key(key: str) -> str | None:
    """Returns the remedy for an unknown key that has no counterpart here, or None."""
    return KEY_REMEDIES.get(plain_word(_last(key)))


def other_names(group: str) -> dict[str, str]:
    """Returns other programs' words for this program's choices of a group, in lower case without separators. The
    comment at the top of a choice's file lists them in a line such as «# Other names: ctr, clickthrough»."""
    files = sorted((conf_dir() / group).glob("*.yaml"))
    return {word: file.stem for file in files for word in listed_names(file.read_text(encoding="utf-8"))}


def nearest_key(key: str, known: Sequence[str]) -> str | None:
    """Returns the known key that the user most likely meant, or None if no key is similar.

    A key with the same name in another group has priority over a key with a similar name in the same group. If the
    group has no keys, all keys are compared. Another program's name for a key is treated as the key's name.
    """
    key = _translated(key, known)
    if key in known:
        return key
    parent, _, name = key.rpartition(".")
    elsewhere = [other for other in known if _last(other) == name]
    if elsewhere:
        return nearest(key, elsewhere) or elsewhere[0]
    beside = {_last(other): other for other in known if other.rpartition(".")[0] == parent}
    if beside:
        match = nearest(name, beside)
        return beside[match] if match is not None else None
    return nearest(key, known)


def _translated(key: str, known: Sequence[str]) -> str:
    """Returns the key with another program's name for it replaced by this project's name."""
    parent, _, name = key.rpartition(".")
    meant = OTHER_KEYS.get(plain_word(name))
    names = {_last(other) for other in known if not other.startswith("hydra.")}
    if meant is None or name in names:
        return key
    return f"{parent}.{meant}" if parent else meant


def _last(key: str) -> str:
    return key.rpartition(".")[2]
