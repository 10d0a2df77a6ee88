"""Writes a TensorFlow 1 graph at random."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.fuzz import kinds
from tests.fuzz.step_source import NUMBERS
from tests.fuzz.text import ID_DTYPES, LENGTH, ROWS, WIDTH, Text

_OPTIMIZERS = {
    "GradientDescent": "v1.train.GradientDescentOptimizer(0.05)",
    "Momentum": "v1.train.MomentumOptimizer(0.05, 0.9)",
    "Adagrad": "v1.train.AdagradOptimizer(0.05)",
    "Adam": "v1.train.AdamOptimizer(0.01)",
    "RMSProp": "v1.train.RMSPropOptimizer(0.01, momentum=0.5)",
    "Ftrl": "v1.train.FtrlOptimizer(0.05, l1_regularization_strength=0.001)",
}
_COPIES = ("tf.identity({0})", "{0} + 0.0", "{0}.read_value() * 1.0")


@dataclass
class Graph:
    """The variables of a graph, and of what each gradient is computed."""

    tables: dict[str, str] = field(default_factory=dict)
    weights: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> list[str]:
        return [*self.tables, *self.weights]


def write_graph(text: Text, kind: str | None) -> None:
    """Writes a graph that has this kind of fault-prone part, or none."""
    text.label("front: TensorFlow 1 graph")
    text.define(NUMBERS)
    text.define("\nv1 = tf.compat.v1\n")
    text.features |= {"x": ((WIDTH,), "float64"), "y": ((), "float64")}
    graph = Graph()
    _variables(text, graph)
    _sources(text, graph, kind)
    _forward(text, graph)
    _train(text, graph, kind)
    text.add('return {"loss": loss, "train_op": train_op}')


def _variables(text: Text, graph: Graph) -> None:
    draw = text.draw
    text.add("global_step = v1.train.get_or_create_global_step()")
    for number in range(1 + draw.chance(0.4)):
        of_words = draw.chance(0.3)
        feature = "words" if of_words else "a"
        if feature not in text.features:
            text.feature(feature, (LENGTH,) if of_words else (), draw.one(ID_DTYPES))
        ids = f'features["{feature}"]'
        if number and draw.chance(0.5):
            ids = f"(3 * {ids} + 1) % {ROWS}"
        graph.tables[f"T{number}"] = ids
        text.add(f'T{number} = v1.get_variable("T{number}", initializer=numbers({text.seed()}, {ROWS}, {WIDTH}))')
    for name in ("W", "V")[: draw.randint(1, 2)]:
        graph.weights.append(name)
        values = f"np.eye({WIDTH}) + 0.3 * numbers({text.seed()}, {WIDTH}, {WIDTH})"
        text.add(f'{name} = v1.get_variable("layer/{name}", initializer={values})')
    text.label(f"tables: {len(graph.tables)}")


def _sources(text: Text, graph: Graph, kind: str | None) -> None:
    draw = text.draw
    graph.sources = {name: name for name in graph.variables}
    if kind == kinds.ROWS:
        text.label(kind)
        for name in draw.some(tuple(graph.tables), draw.randint(1, len(graph.tables))):
            graph.sources[name] = f"rows_{name}"
    if kind == kinds.COPY:
        text.label(kind)
        for name in draw.some(graph.variables, draw.randint(1, len(graph.variables))):
            graph.sources[name] = f"copy_{name}"


def _forward(text: Text, graph: Graph) -> None:
    draw = text.draw
    found = []
    for name, source in graph.sources.items():
        if source.startswith("copy_"):
            text.add(f"{source} = {draw.one(_COPIES).format(name)}")
    for name, ids in graph.tables.items():
        source = graph.sources[name]
        table = source if source.startswith("copy_") else name
        rows = draw.one((f"tf.gather({table}, {ids})", f"tf.nn.embedding_lookup({table}, {ids})"))
        if source.startswith("rows_"):
            text.add(f"{source} = {rows}")
            rows = source
        found.append(f"tf.reduce_mean({rows}, axis=1)" if '"words"' in ids else rows)
    text.add(f'h = ({" + ".join(found)}) * features["x"]')
    for name in graph.weights:
        value = graph.sources[name]
        if draw.chance(0.15):
            text.label("a branch reads a variable")
            text.add(f"h = tf.cond(tf.reduce_sum({value}) > 0.5, lambda: tf.tanh(tf.matmul(h, {value})), lambda: h)")
        else:
            text.add(f"h = tf.tanh(tf.matmul(h, {value}))")
    text.add('loss = tf.reduce_mean(tf.square(tf.reduce_sum(h, axis=1) - features["y"]))')
    if draw.chance(0.2):
        text.label("regularizer: by hand")
        text.add(f"loss += 0.01 * tf.nn.l2_loss({graph.sources[graph.weights[0]]})")


def _train(text: Text, graph: Graph, kind: str | None) -> None:
    draw = text.draw
    name = draw.one(tuple(_OPTIMIZERS))
    text.label(f"optimizer: v1 {name}")
    text.add(f"optimizer = {_OPTIMIZERS[name]}")
    if kind is None and draw.chance(0.3):
        text.label("minimize")
        text.add("train_op = optimizer.minimize(loss, global_step=global_step)")
    else:
        _pairs(text, graph, kind)
        text.add("train_op = optimizer.apply_gradients(pairs, global_step=global_step)")
    if draw.chance(0.3):
        text.label("moving average")
        text.add("average = v1.train.ExponentialMovingAverage(0.9)", "with tf.control_dependencies([train_op]):")
        text.add("    train_op = average.apply([W])")
    if draw.chance(0.2):
        text.label("constraint: by hand")
        text.add("with tf.control_dependencies([train_op]):")
        text.add("    train_op = tf.group(W.assign(tf.clip_by_norm(W, 1.0, axes=[1])))")
    if draw.chance(0.15):
        text.label("a branch writes a variable")
        text.add("with tf.control_dependencies([train_op]):")
        text.add("    halved = tf.cond(tf.equal(global_step.read_value() % 2, 0), lambda: 0.5 * W, lambda: 1.0 * W)")
        text.add("    train_op = tf.group(W.assign(halved))")


def _pairs(text: Text, graph: Graph, kind: str | None) -> None:
    """Sets `pairs`, of gradients and variables."""
    draw = text.draw
    variables = ", ".join(graph.variables)
    if kind is None and draw.chance(0.5):
        text.label("compute_gradients")
        text.add(f"pairs = optimizer.compute_gradients(loss, [{variables}])")
        text.add("gradients = [gradient for gradient, _ in pairs]")
    else:
        text.label("tf.gradients")
        text.add(f"gradients = tf.gradients(loss, [{', '.join(graph.sources.values())}])")
    for number, (table, ids) in enumerate(graph.tables.items()):
        if graph.sources[table].startswith("rows_"):
            values = f"tf.reshape(gradients[{number}], [-1, {WIDTH}])"
            text.add(f"gradients[{number}] = tf.IndexedSlices({values}, tf.reshape({ids}, [-1]), [{ROWS}, {WIDTH}])")
    # The norm of rows with repeated ids is not the norm of the gradient.
    if kind != kinds.ROWS and draw.chance(0.3):
        text.label("clipping: by hand")
        text.add("gradients, _ = tf.clip_by_global_norm(gradients, 0.3)")
    text.add(f"pairs = list(zip(gradients, [{variables}]))")
