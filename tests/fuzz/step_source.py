"""Writes a training step with a tape, or with tf.gradients, at random."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.fuzz import kinds, step_updates
from tests.fuzz.text import ID_DTYPES, LENGTH, ROWS, WIDTH, Text

NUMBERS = '''
def numbers(seed, *shape):
    """Returns values that only depend on the seed."""
    return np.random.default_rng(seed).normal(size=shape) * 0.5
'''


@dataclass
class Step:
    """What a step consists of, while it is written.

    `made` are lines that create objects. `lines` are those of the step: `before` the tape, `inner` in it, and the rest.
    `tables` maps a table to the expression of its ids. `sources` maps each trained variable to the expression of which
    the gradient is computed: the variable itself, a copy, or looked-up rows.
    """

    made: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    inner: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)
    weights: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    by_tape: bool = True

    @property
    def variables(self) -> list[str]:
        return [*self.tables, *self.weights]

    def has_rows(self) -> bool:
        """Returns whether a gradient is that of looked-up rows."""
        return any(source.startswith("rows_") for source in self.sources.values())


def write_step(text: Text, kind: str | None) -> None:
    """Writes a step that has this kind of fault-prone part, or none."""
    text.label("front: training step")
    text.define(NUMBERS)
    text.features |= {"x": ((WIDTH,), "float64"), "y": ((), "float64")}
    step = Step()
    _variables(text, step)
    _sources(text, step, kind)
    _forward(text, step, kind)
    _gradients(text, step, kind)
    step_updates.update(text, step, kind)
    step_updates.extras(text, step, kind)
    _write(text, step)


def _variables(text: Text, step: Step) -> None:
    draw = text.draw
    for number in range(1 + draw.chance(0.4)):
        name = f"T{number}"
        of_words = draw.chance(0.3)
        feature = "words" if of_words else "a"
        if feature not in text.features:
            text.feature(feature, (LENGTH,) if of_words else (), draw.one(ID_DTYPES))
        ids = f'batch["{feature}"]'
        if number and draw.chance(0.5):
            ids = f"(3 * {ids} + 1) % {ROWS}"
        step.made.append(f'{name} = tf.Variable(numbers({text.seed()}, {ROWS}, {WIDTH}), name="{_name(text, name)}")')
        step.tables[name] = ids
    for name in ("W", "V")[: draw.randint(1, 2)]:
        values = f"np.eye({WIDTH}) + 0.3 * numbers({text.seed()}, {WIDTH}, {WIDTH})"
        step.made.append(f'{name} = tf.Variable({values}, name="{_name(text, name)}")')
        step.weights.append(name)
    if draw.chance(0.4):
        step.made.append(f'bias = tf.Variable(np.zeros({WIDTH}), name="bias")')
        step.weights.append("bias")
    text.label(f"tables: {len(step.tables)}")


def _name(text: Text, name: str) -> str:
    if not text.draw.chance(0.1):
        return name
    text.label("name: odd")
    return text.draw.one((f"layer.{name}", f"a/b/{name}"))


def _sources(text: Text, step: Step, kind: str | None) -> None:
    """Chooses of what the gradients are computed."""
    step.sources = {name: name for name in step.variables}
    if kind == kinds.ROWS:
        text.label(kind)
        for name in text.draw.some(tuple(step.tables), text.draw.randint(1, len(step.tables))):
            step.sources[name] = f"rows_{name}"
        step.by_tape = text.draw.chance(0.8)
    if kind == kinds.COPY:
        text.label(kind)
        for name in text.draw.some(step.variables, text.draw.randint(1, len(step.variables))):
            step.sources[name] = f"copy_{name}"
        step.by_tape = text.draw.chance(0.8)
    if kind is None and text.draw.chance(0.12):
        step.by_tape = False
    if not step.by_tape:
        text.label("tf.gradients")


_COPIES = (
    "tf.identity({0})",
    "tf.identity({0})",
    "tf.convert_to_tensor({0})",
    "{0}.read_value()",
    "{0} + 0.0",
    "1.0 * {0}",
)


def _forward(text: Text, step: Step, kind: str | None) -> None:
    """Adds the lines that compute the loss: those before the tape, and those inside."""
    draw = text.draw
    found = []
    for name, ids in step.tables.items():
        source = step.sources[name]
        if source.startswith("copy_"):
            step.before.append(f"{source} = {_copy(text, name)}")
        table = source if source.startswith("copy_") else name
        rows = draw.one((f"tf.gather({table}, {ids})", f"tf.nn.embedding_lookup({table}, {ids})"))
        if source.startswith("rows_"):
            step.before.append(f"{source} = {rows}")
            rows = source
        found.append(f"tf.reduce_mean({rows}, axis=1)" if '"words"' in ids else rows)
        if not source.startswith("rows_") and draw.chance(0.2):
            text.label("several lookups of a table")
            again = f'batch["{"words" if chr(34) + "words" in ids else "a"}"]'
            more = f"tf.gather({table}, ({again} + 2) % {ROWS})"
            found.append(f"tf.reduce_mean({more}, axis=1)" if '"words"' in ids else more)
    step.inner.append(f'h = ({" + ".join(found)}) * batch["x"]')
    for name in step.weights:
        _use(text, step, name)
    step.inner += ["predicted = tf.reduce_sum(h, axis=1)", f"loss = {_loss(text, kind)}"]
    if draw.chance(0.15):
        text.label("regularizer: by hand")
        step.inner.append(f"loss += 0.01 * tf.nn.l2_loss({step.sources[step.weights[0]]})")


def _loss(text: Text, kind: str | None) -> str:
    """Returns an expression for the loss: a mean over the batch, unless the kind asks for another one."""
    errors = text.draw.one(('tf.square(predicted - batch["y"])', 'tf.abs(predicted - batch["y"])'))
    if kind == kinds.STEP_SUM:
        text.label(kind)
        return f"SHARE * 0.25 * tf.reduce_sum({errors})"
    if kind == kinds.STEP_MASKED_MEAN:
        text.label(kind)
        kept = 'tf.cast(batch["y"] > -0.5, tf.float64)'
        return f"tf.reduce_sum({errors} * {kept}) / (1.0 + tf.reduce_sum({kept}))"
    return f"tf.reduce_mean({errors})"


def _copy(text: Text, name: str) -> str:
    return text.draw.one(_COPIES).format(name)


def _use(text: Text, step: Step, name: str) -> None:
    draw, value = text.draw, step.sources[name]
    if value.startswith("copy_"):
        step.before.append(f"{value} = {_copy(text, name)}")
    if name == "bias":
        step.inner.append(f"h = h + {value}")
        return
    product = f"h = tf.tanh(tf.matmul(h, {value}))"
    if draw.chance(0.15):
        text.label("a loop reads a variable")
        step.inner += ["for _ in tf.range(2):", f"    {product}"]
    elif draw.chance(0.15):
        text.label("a branch reads a variable")
        step.inner += [f"if tf.reduce_sum({value}) > 0.5:", f"    {product}", "else:", "    h = 0.5 * h"]
    else:
        step.inner.append(product)


def _gradients(text: Text, step: Step, kind: str | None) -> None:
    sources = list(step.sources.values())
    names = ", ".join(f"g_{name}" for name in step.variables)
    watched = [source for source in sources if "_" in source]
    if step.by_tape:
        step.lines += [
            *step.before,
            "with tf.GradientTape() as tape:",
            *(f"    tape.watch({source})" for source in watched),
            *(f"    {line}" for line in step.inner),
            f"{names}, = tape.gradient(loss, [{', '.join(sources)}])",
        ]
    else:
        step.lines += [*step.before, *step.inner, f"{names}, = tf.gradients(loss, [{', '.join(sources)}])"]
    for table, ids in step.tables.items():
        if step.sources[table].startswith("rows_"):
            flat = f"tf.reshape({ids}, [-1])"
            values = f"tf.reshape(g_{table}, [-1, {WIDTH}])"
            step.lines.append(f"g_{table} = tf.IndexedSlices({values}, {flat}, [{ROWS}, {WIDTH}])")
    if kind != kinds.ROWS and text.draw.chance(0.2):
        text.label("clipping: by hand")
        listed = ", ".join(f"g_{name}" for name in step.variables)
        step.lines.append(f"({names},), _ = tf.clip_by_global_norm([{listed}], 0.3)")


def _write(text: Text, step: Step) -> None:
    kept = ", ".join([*step.variables, *step.kept])
    if "a" in text.features and text.draw.chance(0.06):
        text.label("feature with a space")
        text.features["user id"] = text.features.pop("a")
        step.lines = [line.replace('batch["a"]', 'batch["user id"]') for line in step.lines]
    text.body += [
        'keras.config.set_floatx("float64")',
        *step.made,
        "",
        "@tf.function",
        "def step(batch):",
        *(f"    {line}" for line in step.lines),
        "    return loss",
        "",
        f"return step, lambda: [{kept}]",
    ]
