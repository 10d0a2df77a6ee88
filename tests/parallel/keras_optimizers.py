"""Keras optimizers of the equivalence matrix, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import optimizers

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optimizers.SGD(0.05),
    "momentum": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adagrad": lambda: optimizers.Adagrad(0.05),
    "adam": lambda: optimizers.Adam(0.01),
    "amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.05),
    "rmsprop": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "ftrl": lambda: optimizers.Ftrl(0.05, l1_regularization_strength=0.001),
    "nadam": lambda: optimizers.Nadam(0.01),
    "lion": lambda: optimizers.Lion(0.001),
    "schedule": lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.05, 3, 0.9)),
    "schedule_adam": lambda: optimizers.Adam(optimizers.schedules.CosineDecay(0.05, 20, warmup_steps=3)),
    "clipnorm": lambda: optimizers.Adam(0.01, clipnorm=0.05),
    "global_clipnorm": lambda: optimizers.Adagrad(0.05, global_clipnorm=0.1),
    "clipvalue": lambda: optimizers.Adam(0.01, clipvalue=0.02),
    "ema": lambda: optimizers.Adam(0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3),
    "accumulation": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=3),
    "weight_decay": lambda: optimizers.Adagrad(0.05, weight_decay=0.01),
    "loss_scale": lambda: optimizers.LossScaleOptimizer(
        optimizers.Adam(0.01), initial_scale=2.0**10, dynamic_growth_steps=4
    ),
    "loss_scale_factor": lambda: optimizers.Adagrad(0.05, loss_scale_factor=16.0),
}
