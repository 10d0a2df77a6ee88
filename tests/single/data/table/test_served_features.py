"""A served model computes the features from raw strings and numbers as training does from stored cells."""

import dataclasses
import importlib
import itertools
import string

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from parallax_runner.data.table.columns.column import Role
from parallax_runner.data.table.columns.kinds import KINDS, columns_of
from parallax_runner.data.table.columns.settings import READ
from parallax_runner.data.table.fitted import fitted
from parallax_runner.data.table.stacks import stacks_of
from parallax_runner.data.table.stored_table import SPLITS, STANDARDIZES, Cell
from parallax_runner.data.table.table_dataset import TableDataset
from parallax_runner.data.table.words_of_texts import words_of_texts
from tests.single.data.table.in_memory import stored

RULES = {
    "vocabulary": {},
    "frequent": {"min_count": 3},
    "largest": {"max_size": 4},
    "unknown": {"oov": 3, "min_count": 2},
    "nothing": {"min_count": 10**6},
    "hash": {"hash": 50},
    "one": {"hash": 1},
    "ids": {"ids": 30},
    "keys": {"grows": True},
    "integer keys": {"grows": True, "integers": True},
}
PADDED = {name: settings for name, settings in RULES.items() if "grows" not in settings}
SCALED = {"fill": 0.1, "clip": [-2, 4], "log": True, "standardize": True}
NUMBERS = {
    "plain": {},
    "filled": {"fill": -1.5},
    "clipped": {"clip": [-0.5, 2]},
    "logs": {"log": True},
    "standard": {"standardize": True},
    "bucket": {"buckets": [-1, 0.1, 2, 5]},
    **{
        f"bucket of {' '.join(chosen)}": {"buckets": [-1, 0.1, 0.7, 5], **{word: SCALED[word] for word in chosen}}
        for count in range(1, 5)
        for chosen in itertools.combinations(SCALED, count)
    },
    "all": {"fill": 0, "clip": [-3, 3], "log": True, "standardize": True},
}
OF_STRINGS = {name: settings for name, settings in RULES.items() if settings.keys().isdisjoint({"ids", "integers"})}
TEXTS = {
    f"text {' '.join(chosen)}": {"standardize": chosen[0], "split": chosen[1], **chosen_rule}
    for chosen, chosen_rule in zip(
        itertools.product(STANDARDIZES, SPLITS), itertools.cycle(OF_STRINGS.values()), strict=False
    )
} | {f"text {name}": settings for name, settings in OF_STRINGS.items()}
COLUMNS = {
    **{name: {"text": settings} for name, settings in TEXTS.items()},
    **{
        f"padded {name}": {"text": {**settings, "padded_to": 3}}
        for name, settings in TEXTS.items()
        if "grows" not in settings
    },
    **{f"number {name}": {"number": settings} for name, settings in NUMBERS.items()},
    **{f"category {name}": {"category": settings} for name, settings in RULES.items()},
    **{f"list {name}": {"categories": settings} for name, settings in RULES.items()},
    **{f"separated {name}": {"categories": {"separator": "|", **settings}} for name, settings in RULES.items()},
    **{
        f"padded {name}": {"categories": {"separator": "::", "padded_to": 3, **settings}}
        for name, settings in PADDED.items()
    },
}
STACKS = {
    "dense": ["number filled", "number all"],
    "ids": ["category unknown", "category hash"],
    "keys": ["category keys", "category integer keys"],
}
ROWS, UNSEEN = 400, 300
WORDS = ["", "a", "b", "B", " a ", "ü 水", "a,b", 'q"q', "\t", "0", "-1", "x" * 300, "🙂"]


def values_of(column, count, draws, unseen):
    """Random values: of strings, some are blank, and with `unseen` some are in no training row."""
    raw = column.raw
    if raw.cell is Cell.NUMBER:
        numbers = np.round(draws.normal(size=count) * 3, 1).astype(np.float32)
        numbers[:6] = [0, -0.0, 1e9, -1e9, 2, 5]
        return [None if column.fill is not None and draws.random() < 0.2 else one for one in numbers.tolist()]
    if raw.cell is Cell.INTEGER and column.grows:
        return draws.integers(-(2**63) + 1, 2**63 - 1, count).tolist()
    if raw.cell is Cell.INTEGER:
        return draws.integers(0, 30, count).tolist()
    chosen = draws.integers(0, len(WORDS), count)
    return [f"new {draws.integers(0, 50)}" if unseen and draws.random() < 0.3 else WORDS[one] for one in chosen]


LETTERS = [
    "a",
    "B",
    "ß",
    "É",
    "İ",
    "ǅ",
    "水",
    "🙂",
    "\u0301",
    " ",
    "\t",
    "\n",
    "\v",
    "\x1c",
    "\x85",
    "\xa0",
    "\u3000",
    "\0",
]


def texts_of(count, draws):
    """Random texts with letters, white space and punctuation of all kinds. Some are blank."""
    characters = [*LETTERS, *string.punctuation, *" " * 20]
    texts = ["".join(draws.choice(characters, draws.integers(0, 30))) for _ in range(count - 3)]
    return ["", " . ", "Same words, same WORDS.", *texts]


def stored_cells(column, cells):
    """The cells as files with such values are read."""
    if column.raw.words is None:
        return cells
    lengths, words = words_of_texts(pa.array(cells), column.raw.words)
    splits = np.cumsum(lengths)[:-1]
    return [row.tolist() for row in np.split(np.array(words.to_pylist(), object), splits)]


def cells_of(column, count, draws, unseen):
    if column.raw.words is not None:
        return texts_of(count, draws)
    if not column.raw.is_list:
        return values_of(column, count, draws, unseen)
    return [values_of(column, int(draws.integers(0, 6)), draws, unseen) for _ in range(count)]


def raw_of(column, cells):
    """The cells as a client sends them."""
    raw = column.raw
    if raw.words is not None:
        return np.array(cells, object)
    if not raw.is_list:
        blank = np.nan if raw.cell is Cell.NUMBER else ""
        dtype = {Cell.NUMBER: np.float32, Cell.INTEGER: np.int64, Cell.STRING: object}[raw.cell]
        return np.array([blank if cell is None else cell for cell in cells], dtype)
    if raw.separator is not None:
        return np.array([raw.separator.join(map(str, cell)) for cell in cells], object)
    fill = "" if raw.cell is Cell.STRING else column.rule.filler
    width = max(map(len, cells))
    return np.array(
        [cell + [fill] * (width - len(cell)) for cell in cells], object if raw.cell is Cell.STRING else np.int64
    )


def computed(dataset, raw):
    """The features that a served model computes."""
    with tf.Graph().as_default(), tf.Session() as session:
        specs = dataset.raw_inputs(list(dataset.features), tf2)
        placeholders = {name: tf.placeholder(spec.dtype, spec.shape) for name, spec in specs.items()}
        features = dataset.served_features(list(dataset.features), placeholders, tf2)
        session.run(tf.tables_initializer())
        found = session.run(features, {placeholders[name]: raw[name] for name in specs})
    return found, {name: tensor.shape for name, tensor in features.items()}


def test_the_cases_have_every_setting_of_every_input():
    given = {(kind, word) for content in COLUMNS.values() for kind, words in content.items() for word in words}
    known = set()
    for kind, place in KINDS.items():
        module, _, name = place.partition(".")
        found = getattr(importlib.import_module(f"parallax_runner.data.table.columns.{module}"), name)
        if found.role is Role.INPUT:
            known |= {(kind, one.name) for one in dataclasses.fields(found) if READ in one.metadata}
    assert given == known


@pytest.mark.parametrize("seed", [1, 2])
def test_a_served_model_computes_what_training_computes(tmp_path, seed):
    draws = np.random.default_rng(seed)
    columns = columns_of(COLUMNS)
    parts = {
        name: {one.name: cells_of(one, count, draws, unseen) for one in columns}
        for name, count, unseen in (("train", ROWS, False), ("validation", UNSEEN, True))
    }
    in_files = {
        name: {one.name: stored_cells(one, cells[one.name]) for one in columns} for name, cells in parts.items()
    }
    table = stored([one.raw for one in columns], in_files)
    found = fitted(table, columns, cache_dir=str(tmp_path))
    dataset = TableDataset(table, columns, stacks_of(STACKS, columns), found, shuffle="full", seed=seed)
    trained = dataset.validation_batch(0, UNSEEN)
    served, shapes = computed(dataset, {one.name: raw_of(one, parts["validation"][one.name]) for one in columns})
    assert served.keys() == trained.keys()
    for name, array in trained.items():
        assert served[name].dtype == array.dtype, name
        if array.dtype == np.float32:
            np.testing.assert_allclose(served[name], array, rtol=2e-6, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(served[name], array, err_msg=name)
        assert shapes[name].rank == array.ndim, name
    examples, _ = computed(dataset, dataset.raw_examples(list(dataset.features), 50))
    first = dataset.validation_batch(0, 50)
    for name, array in first.items():
        np.testing.assert_allclose(examples[name], array, rtol=2e-6, atol=1e-6, err_msg=name)
