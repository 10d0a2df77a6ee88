"""A Keras model that translates: a GRU in both directions, a GRU that writes, and attention."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

from benchmarks.results.sentence_pairs import BEGIN, END, LENGTH, PADDING


def make_model(*, source_size: int, target_size: int, width: int, learning_rate: float, seed: int) -> Any:
    """Returns the compiled model.

    Inputs: `source` and `target`, the translation so far, int32 [batch, LENGTH]. Output: logits of the next words,
    float32 [batch, LENGTH, target_size]. The loss is a mean over the words that are not padding.
    """
    keras.utils.set_random_seed(seed)
    source, target = (keras.Input([LENGTH], dtype="int32", name=name) for name in ("source", "target"))
    read = _embedding(source_size, width, "source_words")(source)
    encoded = layers.Bidirectional(layers.GRU(width // 2, return_sequences=True), name="encoder")(read)
    first = layers.Dense(width, activation="tanh", name="bridge")(layers.GlobalAveragePooling1D()(encoded))
    written = layers.Embedding(target_size, width, name="target_words")(target)
    decoded = layers.GRU(width, return_sequences=True, name="decoder")(written, initial_state=first)
    attended = layers.Attention(use_scale=True, name="attention")([decoded, encoded])
    joined = layers.Concatenate()([decoded, attended])
    state = layers.LayerNormalization(name="state")(layers.Dense(width, activation="relu", name="joined")(joined))
    model = keras.Model(
        {"source": source, "target": target}, layers.Dense(target_size, name="next_words")(state), name="translation"
    )
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate, global_clipnorm=5.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PADDING),
    )
    return model


def _embedding(rows: int, width: int, name: str) -> Any:
    # With Keras' small initial rows, the GRUs first see hardly any difference between words.
    first = keras.initializers.RandomNormal(stddev=0.5)
    return layers.Embedding(rows, width, mask_zero=True, embeddings_initializer=first, name=name)


def translate(model: Any, sources: np.ndarray) -> list[list[int]]:
    """Returns the most probable words one after the other, up to END, for `sources` int32 [sentences, LENGTH]."""
    states = keras.Model(model.inputs, model.get_layer("state").output)
    kernel, bias = (value.numpy() for value in model.get_layer("next_words").weights)
    target = np.full((len(sources), LENGTH), PADDING, np.int32)
    target[:, 0] = BEGIN
    written = np.full((len(sources), LENGTH), END, np.int32)
    for place in range(LENGTH):
        state = states.predict({"source": sources, "target": target}, batch_size=250, verbose=0)[:, place]
        written[:, place] = (state @ kernel + bias).argmax(axis=1)
        if place + 1 < LENGTH:
            target[:, place + 1] = written[:, place]
    return [_until_end(row) for row in written.tolist()]


def _until_end(words: list[int]) -> list[int]:
    return words[: words.index(END)] if END in words else words
