"""Writes a compiled Keras model at random."""

from __future__ import annotations

from tests.fuzz import keras_layers, keras_losses, kinds
from tests.fuzz.optimizers import keras_optimizer
from tests.fuzz.own_optimizers import own_optimizer
from tests.fuzz.text import ID_DTYPES, LENGTH, ROWS, WIDTH, Text

_START = '''
def start(seed):
    """Returns an initializer whose values only depend on the seed."""
    return keras.initializers.RandomNormal(stddev=0.5, seed=seed)
'''
_REGULARIZERS = (
    "keras.regularizers.L2(0.01)",
    "keras.regularizers.L1L2(0.001, 0.01)",
)
_CONSTRAINTS = (
    "keras.constraints.MaxNorm(0.7)",
    "keras.constraints.NonNeg()",
    "keras.constraints.UnitNorm(axis=1)",
    "keras.constraints.MinMaxNorm(0.2, 0.9, rate=0.5)",
)
_ACTIVATIONS = ("tanh", "sigmoid", "softplus", "gelu", "relu", "linear")


def write_keras_model(text: Text, kind: str | None) -> None:
    """Writes a model that has this kind of fault-prone part, or none."""
    draw = text.draw
    text.label("front: compiled Keras model")
    text.define(_START)
    text.features |= {"x": ((WIDTH,), "float64")}
    text.options["labels"] = "y"
    text.add('keras.config.set_floatx("float64")', f'x = keras.Input(({WIDTH},), name="x")')
    # An own optimizer is only applied to the rows of a batch if a table's gradient is sparse.
    text.is_sparse = kind in kinds.GROUPS["own"]
    inputs = ["x", *_lookups(text)]
    _combine(text)
    if kind in (kinds.LAYER_LOOP, kinds.LAYER_BRANCH):
        _written_by_a_layer(text, kind)
    for part in draw.some(PARTS[text.is_sparse :], draw.randint(0, 2)):
        part(text)
    _dense(text)
    keras_losses.add_terms(text, kind)
    outputs = keras_losses.outputs(text)
    given = ", ".join(f'"{name}": {name}' for name in inputs)
    text.add(f"model = keras.Model({{{given}}}, {outputs})")
    lines = own_optimizer(text, kind) if kind in kinds.GROUPS["own"] else [f"optimizer = {keras_optimizer(text)}"]
    text.add(*lines)
    keras_losses.compile_model(text, kind)
    text.add("return model")


def _settings(text: Text, what: str) -> str:
    """Returns arguments of a layer: perhaps a regularizer, a constraint and an odd name."""
    draw, arguments = text.draw, ""
    if draw.chance(0.15) and not (text.is_sparse and what == "embeddings"):
        arguments += f", {what}_regularizer={draw.one(_REGULARIZERS)}"
        text.label(f"regularizer: {what}")
    if draw.chance(0.15):
        arguments += f", {what}_constraint={draw.one(_CONSTRAINTS)}"
        text.label(f"constraint: {what}")
    return arguments


def _lookups(text: Text) -> list[str]:
    """Adds tables and lookups of single ids and of words. The results are the variables `found_…`."""
    draw = text.draw
    names = []
    dtype = draw.one(ID_DTYPES)
    if draw.chance(0.7):
        names.append(text.feature("a", (), dtype))
        text.add(f'a = keras.Input((), dtype="{dtype}", name="a")')
    if not names or draw.chance(0.4):
        names.append(text.feature("words", (LENGTH,), draw.one(ID_DTYPES)))
        text.add(f'words = keras.Input(({LENGTH},), dtype="{text.features["words"][1]}", name="words")')
        text.label("words")
    tables = 1 + draw.chance(0.35)
    for number in range(tables):
        name = draw.one((f"table_{number}",) * 3 + (("step", "a-b") if number else ("loss", "Table.1")))
        if name != f"table_{number}":
            text.label("name: odd")
        arguments = f'embeddings_initializer=start({text.seed()}), name="{name}"{_settings(text, "embeddings")}'
        text.add(f"table_{number} = layers.Embedding({ROWS}, {WIDTH}, {arguments})")
    text.label(f"tables: {tables}")
    text.add("found = []")
    for name in names:
        _look_up(text, name, tables)
    return names


def _look_up(text: Text, name: str, tables: int) -> None:
    draw = text.draw
    for number in range(tables):
        for ids in (name, f"(3 * {name} + 1) % {ROWS}")[: 1 + draw.chance(0.3)]:
            if ids != name:
                text.label("several lookups of a table")
            rows = f"table_{number}({ids})"
            text.add(f"found.append({_of_words(text, rows) if name == 'words' else rows})")


def _of_words(text: Text, rows: str) -> str:
    draw = text.draw
    how = draw.one(("mean", "mean", "mean", "convolution", "attention", "recurrent"))
    text.label(f"words: {how}")
    seed = text.seed()
    if how == "mean":
        return f"layers.GlobalAveragePooling1D()({rows})"
    if how == "convolution":
        inner = f'layers.Conv1D({WIDTH}, 2, activation="tanh", kernel_initializer=start({seed}))({rows})'
        return f"layers.GlobalAveragePooling1D()({inner})"
    if how == "attention":
        heads = f"layers.MultiHeadAttention(2, 3, kernel_initializer=start({seed}))"
        return f"layers.GlobalAveragePooling1D()((lambda h: h + {heads}(h, h))({rows}))"
    kind = draw.one(("GRU", "LSTM", "SimpleRNN"))
    starts = f"kernel_initializer=start({seed}), recurrent_initializer=start({text.seed()})"
    return f"layers.{kind}({WIDTH}, {starts})({rows})"


def _combine(text: Text) -> None:
    """Sets `h`, of shape [batch, width or more]."""
    how = text.draw.one(("multiply", "add", "concatenate"))
    if how == "multiply":
        text.add("h = sum(found) * x")
    elif how == "add":
        text.add("h = sum(found) + x")
    else:
        text.add("h = layers.Concatenate()([*found, x])")
    text.width = None if how == "concatenate" else WIDTH


def _dense(text: Text) -> None:
    draw = text.draw
    width = draw.one((WIDTH, 4))
    arguments = f'activation="{draw.one(_ACTIVATIONS)}", kernel_initializer=start({text.seed()})'
    text.add(f"h = layers.Dense({width}, {arguments}{_settings(text, 'kernel')})(h)")
    text.width = width


def _normalized(text: Text) -> None:
    _dense(text)
    text.label("layer normalization")
    text.add("h = layers.LayerNormalization()(h)")


def _gated(text: Text) -> None:
    _dense(text)
    text.label("gates")
    width = text.width
    text.add(f'h = h * layers.Dense({width}, activation="sigmoid", kernel_initializer=start({text.seed()}))(h) + h')


def _tied(text: Text) -> None:
    text.label("tied table")
    text.define(keras_layers.TIED)
    text.add(f"h = layers.Dense({WIDTH}, kernel_initializer=start({text.seed()}))(h)", "h = Tied(table_0)(h)")
    text.width = ROWS


def _counted(text: Text) -> None:
    dtype = text.draw.one(("int32", "int64", "float32", "float64"))
    text.label("a layer keeps an average", f"dtype: {dtype}")
    _dense(text)
    text.define(keras_layers.COUNTED.format(seed=text.seed(), dtype=dtype))
    text.add("h = Counted()(h)")


def _reshaped(text: Text) -> None:
    _dense(text)
    text.label("reshaped")
    width = text.width
    inner = f'layers.Conv1D(2, 2, padding="same", kernel_initializer=start({text.seed()}))'
    text.add(f"h = layers.Flatten()({inner}(layers.Reshape(({width}, 1))(h)))")


def _written_by_a_layer(text: Text, kind: str) -> None:
    draw = text.draw
    text.label(kind)
    if kind == kinds.LAYER_BRANCH:
        factor = draw.one(keras_layers.FACTORS)
        text.label("not trainable" if "trainable" in factor else "trainable")
        text.define(keras_layers.HALVING.format(factor=factor))
        text.add("h = Halving()(h)")
        return
    text.add(f"h = layers.Dense({WIDTH}, kernel_initializer=start({text.seed()}))(h)")
    vector = draw.one(keras_layers.VECTORS)
    text.label("not trainable" if "trainable" in vector else "trainable")
    source = keras_layers.POWER_ITERATION.format(
        seed=text.seed(), u=vector.format(width=WIDTH), loop=draw.one(keras_layers.LOOPS)
    )
    text.define(source)
    text.add("h = PowerIteration()(h)")


def _spectral(text: Text) -> None:
    """A layer of Keras that writes its kernel before it uses it."""
    text.label("Keras' spectral normalization")
    inner = f"layers.Dense({WIDTH}, kernel_initializer=start({text.seed()}))"
    text.add(
        f"spectral = layers.SpectralNormalization({inner}, power_iterations={text.draw.one((1, 2))})",
        "h = spectral(h)",
        # Its initializer has no seed.
        f"spectral.vector_u.assign(np.random.default_rng({text.seed()}).normal(size=spectral.vector_u.shape))",
    )
    text.width = WIDTH


# The first one makes the gradient of a table dense.
PARTS = (_tied, _dense, _normalized, _gated, _counted, _reshaped, _spectral)
