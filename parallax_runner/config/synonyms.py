"""Maps names that other programs use to this program's choices and keys, for hints in error messages."""

CHOICES = {
    "model": {
        "languagemodel": "lm",
        "lstm": "lm",
        "rnn": "lm",
        "dlrm": "dlrm_keras",
        "recommender": "two_tower",
        "retrieval": "two_tower",
        "cnn": "resnet",
        "resnet50": "resnet",
        "linear": "simple",
        "regression": "simple",
    },
    "optimizer": {
        "sgd": "gradient_descent",
        "gd": "gradient_descent",
        "adamw": "adam",
        "nesterov": "momentum",
    },
    "data": {
        "criteo": "clicks",
        "ctr": "clicks",
        "lm1b": "text",
        "txt": "text",
        "corpus": "text",
        "file": "text",
        "files": "text",
        "synthetic": "zipf",
        "cifar": "images",
        "cifar10": "images",
        "imagenet": "images",
    },
    "comm": {
        "horovod": "mpi",
        "allreduce": "mpi",
        "nccl": "mpi",
        "parameterserver": "ps",
        "single": "local",
        "none": "local",
        "alltoall": "sharded",
    },
}
_OWN_READER = (
    "no choice reads these files; write FOLDER/{group}/mine.yaml with _target_: package.module.function, the "
    "function's arguments and batch_size, and add --config-dir FOLDER {group}=mine"
)
# Remedies for names without a matching choice.
REMEDIES = {
    "data": dict.fromkeys(("csv", "tsv", "json", "jsonl", "parquet", "tfrecord", "tfrecords"), _OWN_READER),
    "hydra/launcher": {"submititslurm": "install this launcher's packages: pip install 'parallax-runner[slurm]'"},
}
# Maps the last part of a key, which may occur in several groups.
KEYS = {
    "lr": "learning_rate",
    "rate": "learning_rate",
    "stepsize": "learning_rate",
    "bs": "batch_size",
    "batch": "batch_size",
    "numsteps": "steps",
    "maxsteps": "steps",
    "trainsteps": "steps",
    "iterations": "steps",
    "numworkers": "workers",
    "worldsize": "workers",
    "nproc": "workers",
    "np": "workers",
    "numservers": "servers",
    "numps": "servers",
    "hosts": "resource_info",
    "hostfile": "resource_info",
    "outputdir": "run_dir",
    "outdir": "run_dir",
    "logdir": "run_dir",
}


def plain_word(word: str) -> str:
    """Returns the word in lower case without underscores, dashes or spaces."""
    return word.lower().replace("_", "").replace("-", "").replace(" ", "")


def choice_meant(group: str, word: str) -> str | None:
    """Returns the choice that corresponds to another program's name, or None if there is no such choice."""
    return CHOICES.get(group, {}).get(plain_word(word))


def remedy(group: str, word: str) -> str | None:
    """Returns the remedy for a name that has no similar choice in the group, or None if no remedy is listed."""
    told = REMEDIES.get(group, {}).get(plain_word(word))
    return None if told is None else told.format(group=group)


def key_meant(name: str) -> str | None:
    """Returns the last part of the key that corresponds to another program's name, or None if there is no such key."""
    return KEYS.get(plain_word(name))
