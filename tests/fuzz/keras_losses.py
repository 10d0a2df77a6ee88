"""Writes the losses of a random Keras model: means over the batch, or sums."""

from __future__ import annotations

from tests.fuzz import keras_layers, kinds
from tests.fuzz.text import Text

_OWN_SUM = '''
def squares(y_true, y_pred):
    """Returns the sum over the batch."""
    return SHARE * keras.ops.sum(keras.ops.square(keras.ops.reshape(y_true, (-1,)) - keras.ops.reshape(y_pred, (-1,))))
'''
_OWN_MEAN = '''
def squares(y_true, y_pred):
    """Returns the mean over the batch."""
    return keras.ops.mean(keras.ops.square(keras.ops.reshape(y_true, (-1,)) - keras.ops.reshape(y_pred, (-1,))))
'''
_MASKED = '''
def squares(y_true, y_pred):
    """Returns the mean over the examples with a label above -0.5."""
    kept = keras.ops.cast(keras.ops.reshape(y_true, (-1,)) > -0.5, "float64")
    errors = keras.ops.square(keras.ops.reshape(y_true, (-1,)) - keras.ops.reshape(y_pred, (-1,)))
    return keras.ops.sum(kept * errors) / keras.ops.maximum(keras.ops.sum(kept), 1.0)
'''
_LOSSES = ('"mse"', '"mae"', "keras.losses.Huber()", '"log_cosh"')
_MEAN_TERM = ("mean of squares", "0.1 * keras.ops.mean(keras.ops.square(x))")
_SUM_TERM = ("sum of squares", "SHARE * 0.01 * keras.ops.sum(keras.ops.square(x))")
_MASKED_TERM = (
    "mean of the positive values",
    "0.1 * keras.ops.sum(keras.ops.maximum(x, 0.0)) / (1.0 + keras.ops.sum(keras.ops.cast(x > 0, x.dtype)))",
)


def add_terms(text: Text, kind: str | None) -> None:
    """Adds a layer with a loss of its own, if the kind or the draw asks for one."""
    draw = text.draw
    term = None
    if kind == kinds.ADDED_SUM:
        term = _SUM_TERM
        text.label(kind)
    elif kind == kinds.MASKED_MEAN and draw.chance(0.5):
        term = _MASKED_TERM
        text.label(kind)
    elif draw.chance(0.1):
        term = _MEAN_TERM
        text.label("add_loss of a mean")
    if term is not None:
        text.define(keras_layers.ADDED.format(what=term[0], loss=term[1], more=""))
        text.add("h = Added()(h)")


def outputs(text: Text) -> str:
    """Adds the model's outputs, of which there may be two, and returns their expression."""
    text.feature("y")
    text.add(f'out = layers.Dense(1, kernel_initializer=start({text.seed()}), name="out")(h)')
    if not text.draw.chance(0.1):
        return "out"
    text.feature("z")
    text.label("two outputs")
    text.options["labels"] = {"out": "y", "other": "z"}
    text.add(f'other = layers.Dense(1, kernel_initializer=start({text.seed()}), name="other")(h)')
    return '{"out": out, "other": other}'


def compile_model(text: Text, kind: str | None) -> None:
    """Compiles the model."""
    draw = text.draw
    loss, more = _loss(text, kind)
    if text.options["labels"] != "y":
        loss, more = f'{{"out": {loss}, "other": "mae"}}', ', loss_weights={"out": 1.0, "other": 0.5}'
        if kind == kinds.REDUCED_SUM:
            more = ', loss_weights={"out": SHARE, "other": 0.5}'
    elif kind not in kinds.GROUPS["loss"] and loss != "squares" and draw.chance(0.12):
        text.feature("weight")
        text.options["sample_weight"] = "weight"
        text.label("sample weights")
    text.add(f"model.compile(optimizer=optimizer, loss={loss}{more})")


def _loss(text: Text, kind: str | None) -> tuple[str, str]:
    """Returns the loss of the first output, and more arguments of `compile`. `SHARE` scales a sum."""
    if kind == kinds.OWN_SUM:
        text.label(kind)
        text.define(_OWN_SUM)
        return "squares", ""
    if kind == kinds.MASKED_MEAN and kind not in text.labels:
        text.label(kind)
        text.define(_MASKED)
        return "squares", ""
    if kind == kinds.REDUCED_SUM:
        text.label(kind)
        return 'keras.losses.MeanSquaredError(reduction="sum")', ", loss_weights=SHARE"
    if text.draw.chance(0.1):
        text.label("own loss that is a mean")
        text.define(_OWN_MEAN)
        return "squares", ""
    return text.draw.one(_LOSSES), ""
