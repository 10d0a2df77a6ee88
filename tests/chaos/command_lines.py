"""Random command lines for `action=plan` and for the other actions, from a seed. Most of their words are right, so that
they get far: `tests/single/config/command_lines.py` has the lines whose words are mostly wrong."""

from __future__ import annotations

import random

TINY = (
    "data.vocab_size=200",
    "data.sequence_length=5",
    "data.batch_size=4",
    "model.embedding_size=8",
    "model.num_units=8",
)
MODELS = ("model=simple", "model=simple", "model=lm", "experiment=quick", "model=two_tower", "model=dlrm_keras")

# Right in at least one combination.
GROUPS = {
    "comm": ("mpi", "ps", "hybrid", "sharded", "local", "auto"),
    "optimizer": ("adagrad", "adam", "ftrl", "gradient_descent", "momentum", "rmsprop"),
    "data": ("linear", "zipf", "stdlib", "clicks", "pairs"),
    "partition": ("off", "fixed", "search"),
    "ckpt": ("default", "off"),
    "profile": ("off", "steps", "range"),
    "tracking": ("mlflow", "off"),
    "train": ("default", "debug"),
    "cluster": ("local", "hosts", "manual", "slurm"),
}
RIGHT = {
    "train.steps": ("1", "20", "200"),
    "train.seed": ("0", "7", str(2**31 - 1)),
    "train.log_every": ("1", "1000"),
    "train.validate_steps": ("null", "5"),
    "train.patience": ("null", "2"),
    "train.on_nan": ("stop", "skip"),
    "train.max_restarts": ("0", "3"),
    "train.stall_timeout_secs": ("null", "10", "60.5"),
    "comm.sync": ("true", "false"),
    "comm.average_sparse": ("true", "false"),
    "comm.compression": ("off", "fp16", "bf16"),
    "comm.lookahead": ("auto", "off", "on"),
    "comm.mpi.use_allgatherv": ("true", "false"),
    "comm.ps.replicate_variables": ("true", "false"),
    "comm.ps.backup_workers": ("0", "1"),
    "comm.ps.staleness": ("null", "2"),
    "partition.num": ("1", "2", "7"),
    "partition.cut": ("alike", "by_bytes"),
    "cluster.workers": ("1", "2", "3", "16"),
    "cluster.servers": ("0", "1", "2"),
    "cluster.replicas_per_worker": ("1", "2"),
    "cluster.threads_per_worker": ("1", "4"),
    "ckpt.save_steps": ("null", "5"),
    "ckpt.keep": ("1", "3", "null"),
    "ckpt.resume": ("never", "auto", "must"),
    "profile.steps": ("[3]", "[1,2]"),
    "profile.range": ("[2,4]",),
    "profile.worker": ("0", "1"),
    "tracking.run_name": ("a", "'a b'", "null"),
    "tracking.log_checkpoints": ("last", "best", "all", "none"),
    "optimizer.learning_rate": ("0.1", "1e-3"),
    "data.batch_size": ("1", "8", "64"),
    "data.seed": ("1", "${train.seed}"),
    "model.embedding_size": ("8", "12"),
    "sweep.fail_fast": ("true", "false"),
}
WRONG = (
    "-1",
    "0",
    "1.5",
    "x",
    "nan",
    "1e999",
    "[]",
    "{a: 1}",
    "''",
    "true",
    "null",
    "???",
    "${nowhere}",
    "9" * 400,
    "ü",
)
SWEPT = {
    "train.seed": ("1,2", "range(1,4)"),
    "comm": ("mpi,ps", "hybrid,sharded,mpi"),
    "cluster.workers": ("1,2", "0,1"),
    "optimizer": ("adam,adagrad", "adam,none"),
    "train.steps": ("choice(5,10)", "1,x"),
    "data.batch_size": ("2,4", "4,4"),
}
ACTIONS = ("train", "verify", "search", "simulate", "plans", "sync")


def command_line(seed: int, *, action: str | None = None) -> list[str]:
    """Returns one model, one action (mostly `plan`) and up to five more words. A quarter of the lines are sweeps."""
    draw = random.Random(f"chaos {seed}")
    model = draw.choice(MODELS)
    chosen = action or (draw.choice(ACTIONS) if draw.random() < 0.25 else "plan")
    words = [model, *(TINY if model == "model=lm" else ()), f"action={chosen}"]
    words += [_word(draw) for _ in range(draw.randrange(6))]
    if draw.random() < 0.25:
        key = draw.choice(sorted(SWEPT))
        words.append(f"{key}={draw.choice(SWEPT[key])}")
        if draw.random() < 0.8:
            words.append(draw.choice(("-m", "--multirun")))
    return words


def _word(draw: random.Random) -> str:
    kind = draw.random()
    if kind < 0.25:
        group = draw.choice(sorted(GROUPS))
        return f"{group}={draw.choice(GROUPS[group])}"
    key = draw.choice(sorted(RIGHT))
    if kind < 0.85:
        return f"{key}={draw.choice(RIGHT[key])}"
    if kind < 0.9:
        return f"{_misspelled(draw, key)}={draw.choice(RIGHT[key])}"
    if kind < 0.92:
        return f"~{key}"
    return f"{key}={draw.choice(WRONG)}"


def _misspelled(draw: random.Random, key: str) -> str:
    place = draw.randrange(len(key))
    return key[:place] + draw.choice("xyz_.") + key[place + 1 :]
