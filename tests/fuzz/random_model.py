"""Makes a random model and the way in which it is trained from a seed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tests.fuzz import kinds
from tests.fuzz.graph_source import write_graph
from tests.fuzz.keras_source import write_keras_model
from tests.fuzz.step_source import write_step
from tests.fuzz.text import Draw, Text

# An update that begins at step 5 or 6 (own_optimizers.py) must be among these.
STEPS = 8
KERAS, STEP, GRAPH = "keras", "step", "graph"
_WRITERS = {KERAS: write_keras_model, STEP: write_step, GRAPH: write_graph}
_COMMS = ("local", "mpi", "ps", "hybrid", "sharded")
# How many of 100 models belong to each group of kinds, and the fronts that have each kind.
_SHARES = {None: 46, "written": 16, "read": 14, "own": 12, "loss": 12}
_FRONTS = {
    **dict.fromkeys((kinds.LAYER_LOOP, kinds.LAYER_BRANCH), (KERAS,)),
    **dict.fromkeys((kinds.LOOP, kinds.BRANCH, kinds.CHOSEN_UPDATE, kinds.AVERAGE_IN_BRANCH), (STEP,)),
    **dict.fromkeys(kinds.GROUPS["read"], (STEP, STEP, GRAPH)),
    **dict.fromkeys((kinds.NO_CONFIG, kinds.LATE, kinds.SET_LATER), (KERAS,)),
    **dict.fromkeys((kinds.COUPLED, kinds.WITH_CONFIG), (KERAS, KERAS, STEP)),
    **dict.fromkeys(kinds.GROUPS["loss"], (KERAS,)),
    **dict.fromkeys((kinds.STEP_SUM, kinds.STEP_MASKED_MEAN), (STEP,)),
}


# What the mode ps refuses in most models, because a server cannot hold a variable that is used in this way.
_REFUSED_BY_PS = (
    *kinds.GROUPS["written"],
    "a branch writes a variable",
    "update: slice",
    "Keras' spectral normalization",
)


@dataclass(frozen=True)
class Segment:
    """Consecutive steps under one mode and set of options. A mode without communication has one rank."""

    comm: str
    ranks: int
    partitions: int = 1
    lookahead: str = "off"
    use_allgatherv: bool = False
    replicate_variables: bool = False
    among_servers: bool = True

    @property
    def name(self) -> str:
        """The mode and the options that differ from the default."""
        changed = [
            f"{one.name}={getattr(self, one.name)}"
            for one in dataclasses.fields(self)
            if one.name != "comm" and getattr(self, one.name) != one.default
        ]
        return f"{self.comm}({', '.join(changed)})"


@dataclass(frozen=True)
class RandomModel:
    """A model's source, what it contains, and how it is trained. Several segments are separated by checkpoints."""

    seed: int
    front: str
    source: str
    labels: tuple[str, ...]
    segments: tuple[Segment, ...]

    @property
    def ranks(self) -> int:
        """The largest number of ranks of a segment."""
        return max(segment.ranks for segment in self.segments)

    @property
    def processes(self) -> int:
        """The number of processes of the launch; some have nothing to do if all segments have one rank."""
        return max(2, self.ranks)

    def segment_steps(self, number: int) -> range:
        """Returns the steps of a segment."""
        count = len(self.segments)
        return range(number * STEPS // count, (number + 1) * STEPS // count)

    def ranks_by_step(self) -> list[int]:
        """Returns how many ranks train in each step."""
        return [segment.ranks for number, segment in enumerate(self.segments) for _ in self.segment_steps(number)]

    @property
    def name(self) -> str:
        """The modes and labels on one line."""
        return f"{' then '.join(one.name for one in self.segments)}: {', '.join(self.labels)}"


def random_model(seed: int) -> RandomModel:
    """Returns the model of a seed, the same on every machine."""
    draw = Draw(f"model {seed}")
    group = draw.choices(tuple(_SHARES), tuple(_SHARES.values()))[0]
    kind = None if group is None else draw.one(kinds.GROUPS[group])
    front = draw.one((KERAS, KERAS, STEP, STEP, GRAPH) if kind is None else _FRONTS[kind])
    text = Text(draw)
    _WRITERS[front](text, kind)
    segments = _segments(Draw(f"run {seed}"), text.labels)
    model = RandomModel(seed, front, "", tuple(text.labels), segments)
    return dataclasses.replace(model, source=_source(text, model))


def _segments(draw: Draw, labels: list[str]) -> tuple[Segment, ...]:
    """Returns one or two segments. At least one has several ranks, and a sum in the loss has the same ranks in both."""
    ranks = draw.one((2, 2, 3))
    comms = [draw.one(_COMMS)]
    if draw.chance(0.4):
        comms.append(draw.one([comm for comm in _COMMS if comm != comms[0]]))
    if kinds.must_be_named(labels):
        comms = [comm for comm in comms if comm != "local"] or ["mpi"]
    if set(_REFUSED_BY_PS) & set(labels) and draw.chance(0.7):
        comms = [comm for comm in comms if comm != "ps"] or ["mpi"]
    return tuple(_segment(draw, comm, ranks) for comm in comms)


def _segment(draw: Draw, comm: str, ranks: int) -> Segment:
    segment = Segment(comm, 1 if comm == "local" else ranks)
    if comm in ("ps", "hybrid"):
        segment = dataclasses.replace(segment, partitions=draw.one((1, 2, 3)))
    if comm == "sharded":
        segment = dataclasses.replace(segment, lookahead=draw.one(("off", "on", "on")))
    if comm == "mpi":
        segment = dataclasses.replace(segment, use_allgatherv=draw.chance(0.25))
    if comm == "ps":
        segment = dataclasses.replace(segment, replicate_variables=draw.chance(0.25), among_servers=draw.chance(0.75))
    return segment


def _source(text: Text, model: RandomModel) -> str:
    """Returns the whole module."""
    head = [f'"""Random model {model.seed}, trained under {" then ".join(one.name for one in model.segments)}.', ""]
    head += [*(f"- {label}" for label in model.labels), '"""', ""]
    imports = ["import keras", "import numpy as np", "import tensorflow as tf", "from keras import layers"]
    constants = [
        f"FEATURES = {text.features!r}  # the shape of an example, and the dtype",
        f"OPTIONS = {text.options!r}",
        "SHARE = 1.0  # of sums in the loss",
        "KEPT = []  # variables that no layer lists",
    ]
    function = "def build(features):" if model.front == GRAPH else "def make():"
    start = [] if model.front == GRAPH else ["    KEPT.clear()"]
    body = [f"    {line}" if line else "" for line in text.body]
    above = [line for definition in text.above for line in ["", *definition.splitlines()]]
    return "\n".join([*head, *imports, "", *constants, *above, "", "", function, *start, *body, ""])
