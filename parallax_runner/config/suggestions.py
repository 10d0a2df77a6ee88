"""Finds the name that a user most likely meant: a similar name, or this program's name for another program's word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

# Words of other programs, in lower case without separators, that `nearest` does not match to this program's name: the
# choices of groups and, under None, the last parts of keys, which may occur in several groups.
OTHER_NAMES: dict[str | None, dict[str, str]] = {
    "model": {
        **{"languagemodel": "lm", "rnn": "lm", "dlrm": "dlrm_keras", "cnn": "resnet"},
        **{"recommender": "two_tower", "retrieval": "two_tower", "linear": "simple", "regression": "simple"},
    },
    "optimizer": {"sgd": "gradient_descent", "gd": "gradient_descent", "nesterov": "momentum"},
    "data": {
        **{"criteo": "clicks", "ctr": "clicks", "lm1b": "text", "corpus": "text", "file": "text", "files": "text"},
        **{"synthetic": "zipf", "cifar": "images", "cifar10": "images"},
    },
    "comm": {
        **{"horovod": "mpi", "allreduce": "mpi", "nccl": "mpi", "parameterserver": "ps", "alltoall": "sharded"},
        **{"single": "local", "none": "local"},
    },
    None: {
        **{"lr": "learning_rate", "rate": "learning_rate", "stepsize": "learning_rate"},
        **{"bs": "batch_size", "batch": "batch_size"},
        **{"numsteps": "steps", "maxsteps": "steps", "trainsteps": "steps", "iterations": "steps"},
        **{"numworkers": "workers", "worldsize": "workers", "nproc": "workers", "np": "workers"},
        **{"numservers": "servers", "numps": "servers", "hosts": "resource_info", "hostfile": "resource_info"},
        **{"outputdir": "run_dir", "outdir": "run_dir", "logdir": "run_dir"},
    },
}
_OWN_READER = (
    "No choice reads these files; write FOLDER/data/mine.yaml with _target_: package.module.function, the function's "
    "arguments and batch_size, and add --config-dir FOLDER data=mine."
)
# Remedies for names without a matching choice.
REMEDIES = {
    "data": dict.fromkeys(("csv", "tsv", "json", "jsonl", "parquet", "tfrecord", "tfrecords"), _OWN_READER),
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
    if (told := REMEDIES.get(group, {}).get(plain)) is not None:
        return told
    meant = OTHER_NAMES.get(group, {}).get(plain)
    choice = meant if meant in options else nearest(word, options)
    return None if choice is None else f"Did you mean {group}={choice}?"


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
    meant = OTHER_NAMES[None].get(plain_word(name))
    names = {_last(other) for other in known if not other.startswith("hydra.")}
    if meant is None or name in names:
        return key
    return f"{parent}.{meant}" if parent else meant


def _last(key: str) -> str:
    return key.rpartition(".")[2]
