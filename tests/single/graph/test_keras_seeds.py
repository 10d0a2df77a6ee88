"""Which seeds Keras draws in a graph: the same in every process, in the order of creation."""

from __future__ import annotations

import random

import keras
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph import generators
from parallax_runner.graph.capture import begin_afresh, keras_names_kept
from parallax_runner.graph.keras_seeds import _Draws


def drawn_by_a_process(graph_seed: int | None) -> list[int]:
    """What Keras draws for three layers or initializers that are given no seed."""
    draws = _Draws(random)
    with tf.Graph().as_default():
        tf.set_random_seed(graph_seed)
        return [draws.randint(1, 10**9) for _ in range(3)]


def test_all_processes_draw_the_same_with_and_without_a_seed_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators.begin, "is_untouched", lambda: True)
    for graph_seed in (None, 1):
        first, second = (drawn_by_a_process(graph_seed) for _ in range(2))
        assert first == second and len(set(first)) == 3
    assert drawn_by_a_process(1) != drawn_by_a_process(None)


def test_processes_draw_their_own_where_the_script_has_seeded_pythons_generator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with `random.seed(rank)`."""
    monkeypatch.setattr(generators.begin, "is_untouched", lambda: False)
    found = []
    for rank in (0, 1, 1):
        monkeypatch.setattr(random, "randint", random.Random(rank).randint)
        found.append(drawn_by_a_process(None))
    assert found[0] != found[1] == found[2]


def test_what_fit_does_in_one_process_does_not_number_the_layers_of_later_models() -> None:
    keras.layers.Dense(1)
    with keras_names_kept():
        begin_afresh()
        assert keras.layers.Dense(1).name == "dense"
        keras.layers.Dropout(0.5)
    names = [keras.layers.Dense(1).name for _ in range(2)]
    number = int(names[0].partition("_")[2])
    assert number >= 1 and names[1] == f"dense_{number + 1}"
