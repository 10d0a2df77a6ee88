"""Generates command lines, right and wrong ones, from a seed."""

from __future__ import annotations

import random

from parallax_runner.config.key_meanings import keys_of_config_file, keys_of_group
from parallax_runner.config.location import conf_dir

GROUPS = ("train", "comm", "partition", "cluster", "ckpt", "profile", "tracking")
CHOICES = ("model", "data", "optimizer", "experiment", *GROUPS)
KEYS = (
    *(f"{group}.{key.name}" for group in GROUPS for key in keys_of_group(group, [""])),
    *(key.name for key in keys_of_config_file((conf_dir() / "config.yaml").read_text())),
    *(f"{group}.{name}" for group in ("model", "data", "optimizer") for name in ("_target_", "_partial_", "_args_")),
    *("data.batch_size", "data.path", "data.seed", "model.vocab_size", "optimizer.learning_rate", "tracking.tags"),
    *("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.mode", "hydra.job.name", "hydra.searchpath"),
    *("hydra.job.chdir", "hydra.job.num", "hydra.verbose", "hydra.sweeper.params", "hydra.sweeper._target_"),
    *("hydra.launcher.n_jobs", "hydra/launcher", "hydra/sweeper", "hydra/job_logging", "hydra.output_subdir"),
    *("hydra.job.env_copy", "hydra.job.env_set.A", "hydra.callbacks.x", "hydra.callbacks.x._target_"),
    *("hydra.job_logging.version", "hydra.job_logging.root", "hydra.launcher._target_"),
    *(
        "nonsense",
        "train",
        "train.stepz",
        "comm.mpi",
        "comm.ps",
        "comm.routes",
        "",
        ".",
        "train..steps",
        "a.b.c",
        "comm@x",
    ),
)
VALUES = (
    *("0", "1", "-1", "3", "1.5", "-0.0", "1e999", "nan", "inf", "true", "null", "''", '""', "???", "9" * 5000),
    *(
        "[]",
        "[1,2]",
        "{}",
        "{a:1}",
        "[[1],{a:[2]}]",
        "[" * 200,
        "[" * 30 + "]" * 30,
        "{a:",
        "(",
        ")",
        "'",
        '"',
        "\\",
        "=",
        "a=b",
    ),
    *(
        "x",
        "mpi",
        "ps",
        "lm",
        "off",
        "1,2",
        "mpi,ps",
        "range(1,4)",
        "range(3,1)",
        "choice(a,b)",
        "glob(*)",
        "glob(zz*)",
    ),
    *(
        "interval(0,1)",
        "interval(1,0)",
        "sort(3,1)",
        "shuffle(1,2)",
        "int(x)",
        "cast(1)",
        "extend_list(1)",
        "tag(a,1,2)",
    ),
    *("${train.steps}", "${nowhere}", "${train.steps", "${hydra:runtime.cwd}", "${oc.env:HOME}", "${oc.env:NOWHERE_}"),
    *("${oc.decode:'['}", "${train}", "${.steps}", "${now:%Y}", "${job_folder:a}", "$", "${}", "${a:${b:${c}}}"),
    *(
        "/proc/x",
        "/sys/x",
        "/dev/null",
        "/dev/null/x",
        "/etc/passwd",
        "/",
        "~/x",
        "~nobody/x",
        "..",
        "a/" * 2500,
        "n" * 256,
    ),
    *(
        "é",
        "日本語",
        "\u202e",
        "\x1b[31m",
        "a\nb",
        "'a\nb'",
        "\t",
        "\udcff",
        "'\udcff'",
        "x\u0000y".replace("\u0000", "\u0001"),
    ),
    *(
        "os.getcwd",
        "os",
        "nowhere.at.all",
        "models.lm",
        "models.lm.build",
        "builtins.exit",
        "sqlite:///",
        "sqlite:////x/y",
    ),
    *(
        "http://",
        "http://[",
        "postgresql://a:b@c/d",
        "file:/x",
        "auto",
        "never",
        "RUN",
        "MULTIRUN",
        "1:2",
        "0x10",
        "1_0",
    ),
)
FLAGS = ("-m", "--multirun", "--resolve", "-h", "--help", "--hlep", "--train.steps", "--train.steps=3", "-x", "--", "-")
SHOWING = (
    "--cfg=job",
    "--cfg=hydra",
    "--cfg=all",
    "--cfg=nonsense",
    "--info=defaults",
    "--info=nonsense",
    "--hydra-help",
)
MORE = ("--config-name=x", "--config-dir=/nowhere", "--config-path=/nowhere", "--package=train", "-sc=install=bash")


def command_line(seed: int) -> list[str]:
    """Up to four words, as a rule one: what is wrong with the first is all that is said."""
    draw = random.Random(seed)
    words = [_word(draw) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
    if draw.random() < 0.3:
        words.insert(draw.randrange(len(words) + 1), draw.choice((*FLAGS, *MORE)))
    return words


def _word(draw: random.Random) -> str:
    kind = draw.random()
    if kind < 0.15:
        return f"{draw.choice(CHOICES)}={draw.choice(VALUES)}"
    if kind < 0.2:
        return draw.choice(("~", "~~", "+", "++", "")) + draw.choice(KEYS)
    if kind < 0.25:
        return draw.choice(VALUES)
    return f"{draw.choice(('', '', '', '', '+', '++', '~'))}{draw.choice(KEYS)}={draw.choice(VALUES)}"
