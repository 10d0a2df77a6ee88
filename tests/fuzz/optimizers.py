"""Expressions for Keras' optimizers with random settings."""

from __future__ import annotations

from tests.fuzz.text import Draw, Text

_EVERY = {
    "SGD": "SGD(0.05",
    "momentum": "SGD(0.05, momentum=0.9",
    "nesterov": "SGD(0.05, momentum=0.9, nesterov=True",
    "Adagrad": "Adagrad(0.05",
    "Adam": "Adam(0.01",
    "amsgrad": "Adam(0.01, amsgrad=True",
    "AdamW": "AdamW(0.01, weight_decay=0.05",
    "RMSprop": "RMSprop(0.01",
    "centered RMSprop": "RMSprop(0.01, momentum=0.5, centered=True",
    "Adadelta": "Adadelta(0.5",
    "Adamax": "Adamax(0.01",
    "Ftrl": "Ftrl(0.05, l1_regularization_strength=0.001",
    "Nadam": "Nadam(0.01",
    "Lion": "Lion(0.001",
    "Lamb": "Lamb(0.01",
}
_CLIPS = {"clipnorm": "clipnorm=0.05", "global_clipnorm": "global_clipnorm=0.1", "clipvalue": "clipvalue=0.02"}
_DECAY = {"weight_decay": "weight_decay=0.01"}
_AVERAGES = {
    "use_ema": "use_ema=True, ema_momentum=0.8",
    "ema_overwrite": "use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3",
}
_ACCUMULATION = {
    "accumulation of 2": "gradient_accumulation_steps=2",
    "accumulation of 3": "gradient_accumulation_steps=3",
}
_FACTOR = {"loss_scale_factor": "loss_scale_factor=16.0"}
# The settings of an optimizer, and the share of optimizers that have one of each.
_SETTINGS = ((_CLIPS, 0.3), (_DECAY, 0.15), (_AVERAGES, 0.2), (_ACCUMULATION, 0.2), (_FACTOR, 0.1))
_SCHEDULES = (
    "keras.optimizers.schedules.ExponentialDecay({rate}, 2, 0.9)",
    "keras.optimizers.schedules.CosineDecay({rate}, 20, warmup_steps=3)",
)
# Without slots and settings, an update of repeated ids is the same as an update of their sum.
LINEAR = ("SGD(0.05)", "SGD(0.02, weight_decay=0.01)")


def keras_optimizer(text: Text) -> str:
    """Returns an expression for one of Keras' optimizers, and labels the model with it."""
    draw = text.draw
    name = draw.one(tuple(_EVERY))
    expression = _EVERY[name]
    text.label(f"optimizer: {name}")
    chosen = []
    for settings, share in _SETTINGS:
        if draw.chance(share):
            setting = draw.one(tuple(settings))
            if settings[setting].partition("=")[0] not in expression:
                chosen.append(setting)
                expression += f", {settings[setting]}"
    if draw.chance(0.1):
        expression += ', name="opt.1"'
        chosen.append("own name")
    expression = f"keras.optimizers.{_scheduled(draw, expression, chosen)})"
    if draw.chance(0.08) and not any("accumulation" in each or "factor" in each for each in chosen):
        chosen.append("loss scale")
        expression = f"keras.optimizers.LossScaleOptimizer({expression}, initial_scale=2.0**10, dynamic_growth_steps=3)"
    text.label(*(f"setting: {each}" for each in chosen))
    return expression


def _scheduled(draw: Draw, expression: str, chosen: list[str]) -> str:
    if not draw.chance(0.15):
        return expression
    chosen.append("schedule")
    name, _, arguments = expression.partition("(")
    rate, comma, others = arguments.partition(",")
    return f"{name}({draw.one(_SCHEDULES).format(rate=rate)}{comma}{others}"
