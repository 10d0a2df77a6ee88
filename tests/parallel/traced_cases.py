"""The Keras models and steps with a tape in the equivalence matrix, by name, because `keras_models` imports Keras."""

from __future__ import annotations

import itertools
from typing import Any

COMMS = ("mpi", "ps", "hybrid", "sharded")
KERAS = (
    "functional",
    "once",
    "sequential",
    "sequential_embedding",
    "subclassed",
    "shared",
    "lstm",
    "gru",
    "convolutions",
    "batch_norm",
    "dropout",
    "attention",
    "preprocessing",
    "own_step",
    "own_metric",
    "outputs",
    "named_outputs",
    "weighted",
    "loaded",
)
TAPE = ("nested", "stack", "two_optimizers")
# Steps with a tape whose losses are sums over examples.
TAPE_SUMS = ("from_mirrored", "summed")
WITH_TABLE = "with_table"
GROWING = "growing"
PASSING = "passing"  # keys come and go
GROWING_BESIDE = "growing_beside"  # a table that does not grow
WITHOUT_OPTIMIZER = "module"
SHORT = "bfloat16"
LAZY = "lazy"
COUNTED = "counted"
# Variables without gradients that declare how ranks merge them: of a Keras layer, and of TensorFlow.
DECLARED, DECLARED_TAPE = "declared", "declared_tape"
# Draws and statistics belong to a rank's own batch, so plain Keras gives no reference.
OF_OWN_BATCH = ("batch_norm", "dropout")
OPTIMIZERS = (
    "sgd",
    "momentum",
    "adagrad",
    "adam",
    "amsgrad",
    "adamw",
    "rmsprop",
    "ftrl",
    "nadam",
    "lion",
    "schedule",
    "schedule_adam",
    "clipnorm",
    "global_clipnorm",
    "clipvalue",
    "ema",
    "accumulation",
    "weight_decay",
    "loss_scale",
    "loss_scale_factor",
)


def _case(model: str, optimizer: str, comm: str, ranks: int = 2) -> dict[str, Any]:
    kind = "tape" if model in (*TAPE, *TAPE_SUMS, WITHOUT_OPTIMIZER, DECLARED_TAPE, WITH_TABLE) else "keras"
    return {"kind": kind, "model": model, "optimizer": optimizer, "comm": comm, "ranks": ranks}


# Two ranks: every kind of model, every mode, and every way in which an optimizer treats gradients.
CHOSEN = [
    _case("functional", "adagrad", "mpi"),
    _case("functional", "adam", "hybrid"),
    _case("once", "global_clipnorm", "ps"),
    _case("shared", "adam", "sharded"),
    _case("lstm", "sgd", "hybrid"),
    _case("batch_norm", "momentum", "mpi"),
    _case("dropout", "sgd", "ps"),
    _case("own_metric", "ema", "sharded"),
    _case("named_outputs", "loss_scale", "mpi"),
    _case("weighted", "accumulation", "hybrid"),
    _case("two_optimizers", "clipnorm", "ps"),
    _case(WITHOUT_OPTIMIZER, "sgd", "hybrid"),
    _case(LAZY, "adamw", "ps"),
    _case(COUNTED, "loss_scale_factor", "sharded"),
    _case(DECLARED, "adam", "ps"),
    _case(DECLARED_TAPE, "adagrad", "hybrid"),
]
# The default tier: one of each mode, and a step with a tape.
BASIC = [
    _case("functional", "adagrad", "mpi"),
    _case(LAZY, "adamw", "ps"),
    _case("weighted", "accumulation", "hybrid"),
    _case("shared", "adam", "sharded"),
    _case("two_optimizers", "clipnorm", "ps"),
    _case("strings", "adagrad", "sharded"),
    _case(GROWING, "adam", "sharded", 3),
    _case(PASSING, "adagrad", "sharded", 3),
    _case(GROWING_BESIDE, "adam", "hybrid", 3) | {"partitions": 2},
]


# The case of the default tier whose ranks have different numbers of examples.
UNEVEN = _case(DECLARED, "adam", "mpi") | {"uneven": True}


def every() -> list[dict[str, Any]]:
    """Returns the fields of each case: every optimizer in every mode, with models and numbers of ranks in turn."""
    models = itertools.cycle((*KERAS, *TAPE))
    turns = [
        _case(next(models), optimizer, comm, ranks)
        for number, optimizer in enumerate(OPTIMIZERS)
        for comm, ranks in zip(COMMS, (2, 3, 3, 2) if number % 2 else (3, 2, 2, 3), strict=True)
    ]
    by_hand = [_case(WITHOUT_OPTIMIZER, "sgd", comm, ranks) for comm, ranks in (("mpi", 2), ("sharded", 3))]
    counted = [_case(COUNTED, "adam", comm, ranks) for comm, ranks in zip(COMMS, (3, 2, 3, 2), strict=True)]
    declared = [_case(DECLARED, "adam", comm) for comm in COMMS] + [_case(DECLARED_TAPE, "adagrad", "ps", 3)]
    others = [*_lazy(), *_uneven(), *_divided(), *_strings(), *_growing()]
    cases = [*CHOSEN, *turns, *by_hand, *counted, *declared, *others]
    return [case for number, case in enumerate(cases) if case not in cases[:number]]


def _lazy() -> list[dict[str, Any]]:
    """Returns cases in which every optimizer with a sparse gradient updates only the batch's rows, with modes in
    turn."""
    optimizers = [optimizer for optimizer in OPTIMIZERS if optimizer != "accumulation"]
    return [
        _case(LAZY, optimizer, comm, 2 + number // len(COMMS) % 2)
        for number, (optimizer, comm) in enumerate(zip(optimizers, itertools.cycle(COMMS), strict=False))
    ]


def _uneven() -> list[dict[str, Any]]:
    """Returns cases whose ranks have different numbers of examples, in some steps none."""
    cases = [
        _case("functional", "adam", "mpi", 3),
        _case("weighted", "clipnorm", "hybrid"),
        _case("attention", "adagrad", "sharded"),
        _case("own_step", "global_clipnorm", "ps", 3),
        _case("outputs", "ema", "sharded", 3),
        _case("two_optimizers", "adam", "hybrid", 3),
        UNEVEN,
        _case(DECLARED, "sgd", "ps", 3),
        _case(DECLARED_TAPE, "adagrad", "hybrid"),
        _case(WITHOUT_OPTIMIZER, "sgd", "sharded"),
    ]
    return [case | {"uneven": True} for case in cases]


def _divided() -> list[dict[str, Any]]:
    """Returns cases whose losses are divided by a number of all ranks, and cases that sum up values of all ranks, in
    every mode. In some, ranks have different
    numbers of examples."""
    cases = [
        DIVIDED,
        _case("masked", "adagrad", "sharded", 3) | {"uneven": True},
        _case("masked", "sgd", "ps", 3),
        _case("masked", "adam", "hybrid") | {"uneven": True},
        _case("masked_weights", "sgd", "mpi", 3),
        _case("masked_weights", "adam", "ps") | {"uneven": True},
        _case("masked_sum", "adagrad", "hybrid", 3),
        _case("sum", "sgd", "ps"),
        _case("sum", "adam", "sharded", 3) | {"uneven": True},
        _case("unreduced", "adagrad", "mpi", 3),
        _case("unreduced", "sgd", "hybrid") | {"uneven": True},
        _case("mean_of_weights", "adam", "hybrid", 3),
        _case("mean_of_weights", "sgd", "ps", 3) | {"uneven": True},
        _case("synchronized", "adam", "mpi"),
        _case("synchronized", "sgd", "ps", 3),
        _case("synchronized", "adagrad", "sharded", 3) | {"uneven": True},
        _case("synchronized", "sgd", "hybrid") | {"uneven": True},
        _case("adds_sum", "adagrad", "mpi"),
        _case("adds_sum", "sgd", "sharded", 3) | {"uneven": True},
        _case("masked_step", "adam", "mpi"),
        _case("masked_step", "adagrad", "hybrid", 3) | {"uneven": True},
        _case("masked_step", "sgd", "ps") | {"uneven": True},
        _case("from_mirrored", "adagrad", "sharded"),
        _case("from_mirrored", "sgd", "mpi", 3) | {"uneven": True},
        _case("from_mirrored", "adam", "ps", 3),
        SUMMED,
        _case("summed", "adagrad", "mpi") | {"uneven": True},
        _case("summed", "sgd", "ps", 3),
        _case("summed", "momentum", "sharded", 3) | {"uneven": True},
    ]
    return cases


def _growing() -> list[dict[str, Any]]:
    """Returns cases with vocabularies that grow, in the modes that train them."""
    return [
        GROWS,
        _case(GROWING, "adagrad", "sharded"),
        _case(GROWING, "adam", "sharded"),
        _case(GROWING, "momentum", "sharded"),
        _case(GROWING, "momentum", "sharded", 3),
        _case(GROWING, "adamw", "sharded", 3),
        _case(GROWING, "global_clipnorm", "sharded"),
        _case(GROWING, "adagrad", "sharded", 3) | {"uneven": True},
        PASSES,
        _case(PASSING, "adagrad", "sharded"),
        _case(PASSING, "adam", "sharded"),
        _case(PASSING, "adam", "sharded", 3),
        _case(PASSING, "momentum", "sharded"),
        _case(PASSING, "momentum", "sharded", 3),
        _case(PASSING, "adamw", "sharded"),
        _case(PASSING, "ema", "sharded", 3),
        _case(PASSING, "accumulation", "sharded"),
        _case(PASSING, "adagrad", "sharded", 3) | {"uneven": True},
        _case(GROWING, "adam", "hybrid"),
        _case(GROWING_BESIDE, "adam", "hybrid", 3) | {"partitions": 2},
        _case(GROWING_BESIDE, "adagrad", "hybrid") | {"partitions": 2},
        _case(GROWING_BESIDE, "momentum", "hybrid") | {"partitions": 2},
        _case(GROWING_BESIDE, "adagrad", "hybrid", 3) | {"uneven": True},
        _case(GROWING_BESIDE, "momentum", "hybrid", 3) | {"partitions": 2, "recuts": "4_1"},
        _case(GROWING_BESIDE, "global_clipnorm", "hybrid", 3) | {"partitions": 4},
        _case(GROWING_BESIDE, "adamw", "hybrid") | {"partitions": 3},
        _case(GROWING_BESIDE, "ema", "hybrid", 3) | {"partitions": 2},
        _case(GROWING_BESIDE, "adam", "sharded"),
    ]


def _strings() -> list[dict[str, Any]]:
    """Returns cases with features that are strings, and with lookup tables, in every mode."""
    return [
        _case("strings", "adagrad", "sharded"),
        _case("strings", "adam", "mpi", 3),
        _case("strings", "sgd", "ps") | {"uneven": True},
        _case("strings", "momentum", "hybrid", 3),
        _case("strings", "adam", "sharded", 3) | {"uneven": True},
        *(_case(WITH_TABLE, "adagrad", comm, ranks) for comm, ranks in zip(COMMS, (2, 3, 2, 3), strict=True)),
    ]


# The case of the default tier with vocabularies that grow.
GROWS = _case(GROWING, "adam", "sharded", 3)
# The case of the default tier whose keys come and go.
PASSES = _case(PASSING, "adagrad", "sharded", 3)
# The case of the default tier whose loss is divided by a number of all ranks.
DIVIDED = _case("masked", "adam", "mpi")
# The case of the default tier with a step of the user whose loss is a sum.
SUMMED = _case("summed", "adam", "hybrid")


def faulty() -> list[dict[str, Any]]:
    """Returns at least one case for each fault of `traced_faults`."""
    return [
        _case("functional", "momentum", "mpi") | {"fault": "dropped_dependency"},
        _case("dropout", "sgd", "hybrid") | {"fault": "one_seed"},
        _case("functional", "adagrad", "mpi") | {"fault": "unmerged_slices"},
        _case("loaded", "sgd", "sharded") | {"fault": "ignored_weights"},
        _case("functional", "sgd", "hybrid") | {"fault": "initialized_again"},
        _case(GROWING, "adagrad", "sharded") | {"fault": "two_rows_of_a_key"},
        _case(GROWING_BESIDE, "adagrad", "hybrid") | {"fault": "two_rows_of_a_key"},
        _case(PASSING, "adagrad", "sharded") | {"fault": "kept_slots"},
        _case(PASSING, "adagrad", "sharded") | {"fault": "one_count_for_each_rank"},
    ]


def short() -> list[dict[str, Any]]:
    """Returns cases with 16-bit layers in every mode."""
    optimizers = ("sgd", "adam", "adagrad", "momentum")
    return [_case(SHORT, optimizer, comm) for optimizer, comm in zip(optimizers, COMMS, strict=True)]
