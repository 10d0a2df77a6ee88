"""Sources of users' own Keras optimizers, by kind."""

from __future__ import annotations

from tests.fuzz import kinds
from tests.fuzz.text import Text

_NO_CONFIG = '''
class Own(keras.optimizers.{base}):
    """Decays all rows in each step. Its configuration does not say so."""

    def __init__(self, learning_rate=0.05, row_decay=0.0, **arguments):
        super().__init__(learning_rate, **arguments)
        self.row_decay = row_decay

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        self.assign_sub(variable, variable * self.row_decay)
'''
_WITH_CONFIG = (
    _NO_CONFIG.replace(" Its configuration does not say so.", "")
    + """
    def get_config(self):
        return super().get_config() | {{"row_decay": self.row_decay}}
"""
)
_LATE = '''
class Own(keras.optimizers.{base}):
    """Decays all rows from step `first` on."""

    def __init__(self, learning_rate=0.05, first={first}, **arguments):
        super().__init__(learning_rate, **arguments)
        self.first = first

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        begun = keras.ops.cast(self.iterations >= self.first, variable.dtype)
        self.assign_sub(variable, variable * (0.05 * begun))

    def get_config(self):
        return super().get_config() | {{"first": self.first}}
'''
_SET_LATER = '''
class Own(keras.optimizers.{base}):
    """Decays all rows in each step, by a factor that is set on the object."""

    row_decay = 0.0

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        self.assign_sub(variable, variable * self.row_decay)
'''
_COUPLED = '''
class Own(keras.optimizers.{base}):
    """Takes smaller steps where the whole variable is large."""

    def update_step(self, gradient, variable, learning_rate):
        size = keras.ops.sqrt(keras.ops.mean(keras.ops.square(variable)))
        super().update_step(gradient, variable, learning_rate / (1.0 + size))
'''
# Of these, only Adagrad itself leaves the rows alone that are not in the batch.
_BASES = ("Adagrad", "Adagrad", "Adagrad", "Adagrad", "SGD", "Adam")


def own_optimizer(text: Text, kind: str) -> list[str]:
    """Defines an own optimizer of this kind, and returns the lines that set `optimizer`."""
    draw = text.draw
    base = draw.one(_BASES)
    momentum = ", momentum=0.9" if base == "SGD" and draw.chance(0.8) else ""
    sources = {kinds.NO_CONFIG: _NO_CONFIG, kinds.SET_LATER: _SET_LATER, kinds.WITH_CONFIG: _WITH_CONFIG}
    sources |= {kinds.LATE: _LATE, kinds.COUPLED: _COUPLED}
    text.define(sources[kind].format(base=base, first=draw.one((5, 6))))
    text.label(kind, f"optimizer: own {base}")
    if kind in (kinds.NO_CONFIG, kinds.WITH_CONFIG):
        return [f"optimizer = Own(0.05, row_decay=0.05{momentum})"]
    made = [f"optimizer = Own(0.05{momentum})"]
    return [*made, "optimizer.row_decay = 0.05"] if kind == kinds.SET_LATER else made
