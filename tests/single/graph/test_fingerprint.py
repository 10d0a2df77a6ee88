"""The first op in which two graphs differ is named, from an outline that one of them has left."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph.fingerprint import FILE_NAME, Outline, fingerprint_of


def graph_of(build: Callable[[], object]) -> tf.GraphDef:
    with tf.Graph().as_default() as graph:
        tf.constant(0, name="first")
        build()
        tf.constant(0, name="last")
    return graph.as_graph_def()


def constant() -> None:
    tf.constant(2.5, name="drawn")


def other_value() -> None:
    tf.constant(3.5, name="drawn")


def other_op() -> None:
    tf.random.uniform([2], name="drawn")


def other_input() -> None:
    tf.identity(tf.get_default_graph().get_tensor_by_name("first:0"), name="copy")


def its_own_input() -> None:
    tf.identity(tf.constant(0, name="zero"), name="copy")


def copy_of(tensor: str) -> Callable[[], None]:
    def build() -> None:
        tf.constant(0, name="second")
        tf.identity(tf.get_default_graph().get_tensor_by_name(tensor), name="copy")

    return build


def mapped(number: int) -> Callable[[], None]:
    def build() -> None:
        tf.data.make_initializable_iterator(tf.data.Dataset.range(3).map(lambda x: x + number))

    return build


@pytest.mark.parametrize(
    ("there", "here", "told"),
    [
        (constant, other_value, "op 2 is «drawn» (Const): its attribute «value» differs (here 3.5)"),
        (constant, lambda: None, "op 2 is «last» (Const) in place of «drawn» (Const)"),
        (constant, other_op, "op 2 is «drawn/shape» (Const) in place of «drawn» (Const)"),
        (lambda: None, lambda: tf.no_op(name="last"), "op 2 is «last» (NoOp) in place of «last» (Const)"),
        (its_own_input, other_input, "op 2 is «copy» (Identity) in place of «zero» (Const)"),
        (copy_of("first:0"), copy_of("second:0"), "op 3 is «copy» (Identity): its list of inputs differs"),
    ],
)
def test_the_first_difference(
    there: Callable[[], object], here: Callable[[], object], told: str, tmp_path: Path
) -> None:
    Outline.of(graph_of(there)).save(tmp_path / FILE_NAME)
    assert Outline.load(tmp_path / FILE_NAME).first_difference(graph_of(here)) == told
    assert fingerprint_of(graph_of(there)) != fingerprint_of(graph_of(here))


def test_a_function_of_a_dataset_is_named_by_the_op_that_calls_it() -> None:
    difference = Outline.of(graph_of(mapped(1))).first_difference(graph_of(mapped(2)))
    assert difference is not None
    assert "(MapDataset): its attribute «f» differs" in difference


def test_more_ops_and_none() -> None:
    outline = Outline.of(graph_of(constant))
    longer = graph_of(constant)
    longer.node.add(name="more", op="NoOp")
    told = "it has 4 ops instead of 3. The first op that only one graph has is «more»"
    assert outline.first_difference(longer) == told
    assert outline.first_difference(graph_of(constant)) is None


def test_numbers_that_a_process_counts_are_no_difference() -> None:
    outline, graph_def = Outline.of(graph_of(mapped(1))), graph_of(mapped(1))
    assert outline.first_difference(graph_def) is None


def test_a_save_that_fails_leaves_the_outline_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / FILE_NAME
    Outline.of(graph_of(constant)).save(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        Outline.of(graph_of(mapped(1))).save(path)
    assert path.read_bytes() == before


def test_an_outline_is_small(tmp_path: Path) -> None:
    def many() -> None:
        for _ in range(1000):
            tf.constant(1.0)

    Outline.of(graph_of(many)).save(tmp_path / FILE_NAME)
    assert (tmp_path / FILE_NAME).stat().st_size < 40_000
