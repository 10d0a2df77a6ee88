"""The kinds of columns: what they learn from training rows, and what a batch contains."""

import inspect

import numpy as np
import pytest

from parallax_runner.data.table import bad_cells
from parallax_runner.data.table.bad_rows import BadRows
from parallax_runner.data.table.columns import categories, category, group, label, number, sampled, text, weight
from parallax_runner.data.table.columns import id as id_column
from parallax_runner.data.table.columns.column import FeatureColumn, InputColumn, Role
from parallax_runner.data.table.columns.kinds import KINDS, columns_of
from parallax_runner.data.table.fitted import fitted
from parallax_runner.data.table.row_order import GoodRows
from parallax_runner.data.table.stacks import stacks_of
from parallax_runner.data.table.table_dataset import TableDataset
from parallax_runner.errors import ConfigError, DataError
from tests.single.data.table.in_memory import stored


def dataset_of(tmp_path, given, train, validation=None, features=None, shuffle="off", bad_rows=None):
    columns = columns_of(given)
    parts = {"train": train} | ({} if validation is None else {"validation": validation})
    table = stored([one.raw for one in columns if one.raw is not None], parts)
    found = fitted(table, columns, bad_rows=bad_rows, cache_dir=str(tmp_path))
    return TableDataset(table, columns, stacks_of(features, columns), found, shuffle=shuffle, seed=1)


def batch_of(tmp_path, given, train, **others):
    dataset = dataset_of(tmp_path, given, train, **others)
    return dataset, dataset.train_batch(0, dataset.train_size)


def test_numbers_are_filled_clipped_logged_and_standardized(tmp_path):
    kinds = {
        "plain": "number",
        "filled": {"number": {"fill": 3}},
        "clipped": {"number": {"clip": [0, 2]}},
        "log": {"number": {"log": True}},
        "standard": {"number": {"standardize": True, "fill": 0}},
        "bucket": {"number": {"buckets": [1, 2, 5]}},
    }
    rows = {name: [-1.0, 1.0, 6.0, 2.0] for name in kinds} | {"filled": [None, 1, 6, 2], "standard": [None, 2, 4, 6]}
    dataset, batch = batch_of(tmp_path, kinds, rows)
    assert batch["plain"].tolist() == [-1, 1, 6, 2]
    assert batch["filled"].tolist() == [3, 1, 6, 2]
    assert batch["clipped"].tolist() == [0, 1, 2, 2]
    assert batch["log"].tolist() == np.log1p(np.array([0, 1, 6, 2], np.float32)).tolist()
    assert batch["standard"] == pytest.approx((np.array([0, 2, 4, 6]) - 3) / np.sqrt(5))
    assert batch["bucket"].tolist() == [0, 1, 3, 2]
    described = dataset.table_features
    assert (described["bucket"].kind, described["bucket"].sizes) == ("category", (4,))
    assert {batch[name].dtype.name for name in kinds if name != "bucket"} == {"float32"}


def test_a_vocabulary_has_the_frequent_strings_of_the_training_rows_first(tmp_path):
    rows = {"user": ["b", "a", "c", "c", "", None, "d"]}
    dataset, batch = batch_of(tmp_path, {"user": "category"}, rows, validation={"user": ["z", "d"]})
    # Twice: blank and c; once: a, b and d. Strings with the same count are in the order of their bytes.
    assert batch["user"].tolist() == [4, 3, 2, 2, 1, 1, 5]
    assert dataset.validation_batch(0, 2)["user"].tolist() == [0, 5]
    assert dataset.table_features["user"].size == 6


@pytest.mark.parametrize(
    ("settings", "ids", "size"),
    [
        ({"min_count": 2}, [2, 0, 1, 1, 1, 2], 3),
        ({"max_size": 1}, [0, 0, 1, 1, 1, 0], 2),
        ({"ids": 9}, None, 9),
        ({"hash": 7}, None, 7),
    ],
)
def test_categories_are_limited(tmp_path, settings, ids, size):
    given = [1, 2, 3, 3, 3, 1] if "ids" in settings else ["b", "a", "c", "c", "c", "b"]
    dataset, batch = batch_of(tmp_path, {"user": {"category": settings}}, {"user": given})
    assert dataset.table_features["user"].size == size
    assert batch["user"].dtype == np.int64
    if ids is not None:
        assert batch["user"].tolist() == ids
    if "ids" in settings:
        assert batch["user"].tolist() == given


def test_a_hash_is_tensorflows(tmp_path):
    import tensorflow as tf

    words = ["b", "a", "ü 水", "", "c"]
    expected = tf.strings.to_hash_bucket_fast(words, 1000).numpy().tolist()
    assert batch_of(tmp_path, {"user": {"category": {"hash": 1000}}}, {"user": words})[1]["user"].tolist() == expected


def test_keys_are_fingerprints_or_integers_and_need_no_vocabulary(tmp_path):
    import tensorflow as tf

    words, integers = ["b", "a", "ü 水", "", "b"], [-7, 2**62, 0, -(2**63) + 1, -7]
    given = {"user": {"category": {"grows": True}}, "item": {"category": {"grows": True, "integers": True}}}
    train, new = {"user": words[:3], "item": integers[:3]}, {"user": words, "item": integers}
    dataset, batch = batch_of(tmp_path, given, train, validation=new)
    expected = tf.bitcast(tf.fingerprint(words), tf.int64).numpy().tolist()
    assert batch["user"].tolist() == expected[:3] and batch["item"].tolist() == integers[:3]
    validation = dataset.validation_batch(0, 5)
    assert validation["user"].tolist() == expected and validation["item"].tolist() == integers
    assert len(set(expected)) == 4
    assert dataset.columns_with_vocabulary() == []
    assert all(one.grows and one.sizes == () for one in dataset.table_features.values())
    assert dataset.numbering == dataset_of(tmp_path, given, new).numbering


def test_a_blank_integer_is_no_key(tmp_path):
    given = {"item": {"category": {"grows": True, "integers": True}}}
    with pytest.raises(DataError, match="a blank cell or -9223372036854775808; expected another integer"):
        dataset_of(tmp_path, given, {"item": [1, None]})


def test_several_ids_for_unknown_strings_are_hashes(tmp_path):
    import tensorflow as tf

    words = ["a", "a", "x", "y", "z"]
    given = {"user": {"category": {"min_count": 2, "oov": 3}}}
    expected = [3, 3, *tf.strings.to_hash_bucket_fast(words[2:], 3).numpy().tolist()]
    assert batch_of(tmp_path, given, {"user": words})[1]["user"].tolist() == expected


def test_lists_are_ragged_or_padded_and_empty_items_are_left_out(tmp_path):
    rows = {"tags": [["a", "b"], [], ["b", "", "c", "b"], [""]]}
    ragged, batch = batch_of(tmp_path, {"tags": {"categories": {"separator": "|"}}}, rows)
    assert batch["tags/values"].tolist() == [2, 1, 1, 3, 1]
    assert batch["tags/row_splits"].tolist() == [0, 2, 2, 5, 5]
    assert ragged.features["tags"].kind == "ragged" and ragged.table_features["tags"].size == 4
    padded, batch = batch_of(tmp_path, {"tags": {"categories": {"separator": "|", "padded_to": 2}}}, rows)
    assert batch["tags"].tolist() == [[3, 2], [0, 0], [2, 4], [0, 0]]
    assert padded.features["tags"].shape == (2,) and padded.table_features["tags"].size == 5


def test_a_random_order_of_rows_takes_their_lists_along(tmp_path):
    rows = {"tags": [["a"] * (1 + row % 3) for row in range(50)], "number": list(range(50))}
    given = {"tags": {"categories": {"padded_to": 3}}, "number": "number"}
    _, batch = batch_of(tmp_path, given, rows, shuffle="full")
    assert batch["number"].tolist() != rows["number"]
    assert ((batch["tags"] > 0).sum(axis=1) == 1 + batch["number"] % 3).all()


def test_labels_weights_and_ids_have_roles(tmp_path):
    given = {"x": "number", "sold": {"label": {"classes": ["no", "yes"]}}, "w": "weight", "key": "id"}
    rows = {"x": [1, 2], "sold": ["yes", "no"], "w": [0.5, 2], "key": ["k1", "k2"]}
    dataset, batch = batch_of(tmp_path, given, rows)
    assert (dataset.labels, dataset.sample_weight) == ("sold", "w")
    assert batch["sold"].tolist() == [1, 0] and batch["w"].tolist() == [0.5, 2]
    assert set(dataset.features) == {"x", "sold", "w"}
    assert dataset.ids("train", 0, 2)["key"].tolist() == ["k1", "k2"]


def test_rows_of_a_group_have_the_same_number_in_all_parts(tmp_path):
    given = {"x": "number", "query": "group"}
    rows = {"x": [1, 2, 3, 4], "query": ["q1", "q2", "q1", ""]}
    dataset, batch = batch_of(tmp_path, given, rows, validation={"x": [1, 2], "query": ["q2", "q9"]})
    first, second, again, blank = batch["query"].tolist()
    assert first == again and len({first, second, blank}) == 3
    others = dataset.validation_batch(0, 2)["query"].tolist()
    assert others[0] == second and others[1] not in batch["query"]
    assert batch["query"].dtype == np.int64


def test_stacked_columns_are_one_feature(tmp_path):
    given = {"a": "number", "b": "number", "c": "category", "d": {"category": {"ids": 5}}}
    rows = {"a": [1, 2], "b": [3, 4], "c": ["x", "x"], "d": [4, 0]}
    dataset, batch = batch_of(tmp_path, given, rows, features={"dense": ["b", "a"], "ids": ["c", "d"]})
    assert batch["dense"].tolist() == [[3, 1], [4, 2]] and batch["ids"].tolist() == [[1, 4], [1, 0]]
    assert dataset.table_features["ids"].sizes == (2, 5) and dataset.features["dense"].shape == (2,)
    assert set(batch) == set(dataset.features) == {"dense", "ids"}


def test_negative_samples_depend_on_the_position_alone(tmp_path):
    given = {"item": "category", "others": {"sampled": {"from": "item", "count": 4}}}
    dataset, batch = batch_of(tmp_path, given, {"item": [str(row % 40) for row in range(1000)]}, shuffle="full")
    drawn = batch["others"]
    assert drawn.shape == (1000, 4) and dataset.table_features["others"].size == 41
    assert sorted(set(drawn.ravel().tolist())) == list(range(1, 41))
    halves = [dataset.train_batch(start, 500)["others"] for start in (0, 500)]
    assert (np.concatenate(halves) == drawn).all()
    assert (dataset.train_batch(1000, 1000)["others"] != drawn).any()


@pytest.mark.parametrize(
    ("kind", "cells", "told"),
    [
        ("number", [1.0, None], r"row 2 of the rows for train has a blank cell; set the number .*\(fill: 0\)"),
        ({"number": {"fill": 0}}, [np.inf, None], "row 1 .* has an infinite number"),
        ({"category": {"ids": 5}}, [1, 2, 5], "row 3 .* has id 5; expected 0 to 4"),
        ({"category": {"ids": 5}}, [1, None], "row 2 .* has a blank cell; expected 0 to 4"),
        ({"categories": {"ids": 5}}, [[1], [], [2, -1]], "row 3 .* has id -1; expected 0 to 4"),
        ("label", [1, None], "row 2 .* has no number; each row needs a label"),
        ({"label": {"classes": ["no", "yes"]}}, ["no", "maybe"], "row 2 .* has 'maybe'; expected one of no, yes"),
        ("weight", [1, -2], "row 2 .* has the weight -2; expected 0 or more"),
    ],
)
def test_a_cell_that_a_column_does_not_accept_is_refused_with_its_row(tmp_path, kind, cells, told):
    given = {"x": "number", "bad": kind}
    fine = [value for value in cells if value is not None][:1]
    with pytest.raises(DataError, match=f"data.columns.bad.*{told}"):
        dataset_of(tmp_path, given, {"x": [0] * len(cells), "bad": cells})
    if "row 1" not in told:  # the same cell of a validation row
        with pytest.raises(DataError, match="of the rows for validation"):
            held_back = {"x": [0] * len(cells), "bad": cells}
            dataset_of(tmp_path, given, {"x": [0], "bad": fine}, validation=held_back)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "data.columns={}: expected the columns by name"),
        ({"x": "numbr"}, "data.columns.x=numbr: no such kind of column; .* Did you mean number?"),
        ({"x": {"number": {"fil": 0}}}, "data.columns.x.number.fil=0: .* Did you mean data.columns.x.number.fill?"),
        ({"x": {"number": {"fill": "a"}}}, "data.columns.x.number.fill=a: expected a number"),
        ({"x": {"number": {"log": 1}}}, "data.columns.x.number.log=1: expected true or false"),
        ({"x": {"number": {"clip": [2, 1]}}}, "data.columns.x.number.clip=.*: expected the lowest and the highest"),
        ({"x": {"number": {"buckets": [1, 1]}}}, "data.columns.x.number.buckets=.*: expected a list of increasing"),
        ({"x": {"category": {"hash": 0}}}, "data.columns.x.category.hash=0: expected an integer, at least 1"),
        ({"x": {"category": {"hash": 5, "ids": 5}}}, "data.columns.x.category: expected one of hash and ids"),
        ({"x": {"category": {"hash": 5, "oov": 5}}}, "data.columns.x.category: expected hash without oov"),
        ({"x": {"category": {"grows": True, "hash": 5}}}, "data.columns.x.category: expected grows without hash"),
        ({"x": {"text": {"grows": True, "padded_to": 5}}}, "data.columns.x.text: expected grows without padded_to"),
        ({"x": {"categories": {"integers": True}}}, "data.columns.x.categories: expected grows: true beside integers"),
        (
            {"item": {"category": {"grows": True}}, "n": {"sampled": {"from": "item"}}},
            "data.columns.n.sampled.from=item: expected a column of the kind category with ids; there is none",
        ),
        ({"x": {"weight": {"a": 5}}, "y": "number"}, "data.columns.x.weight.a=5: .*weight has no settings"),
        ({"x": {"number": 5}}, "data.columns.x.number=5: expected a kind with its settings"),
        (
            {"x": "number", "y": "label", "z": "label"},
            "data.columns: expected one column of the kind label, found y, z",
        ),
        ({"y": "label"}, "data.columns: expected at least one column that is an input"),
        ({"item": "category", "n": {"sampled": {"from": "itm"}}}, "data.columns.n.sampled.from=itm: .* mean item?"),
        ({"item": "category", "n": "sampled"}, "data.columns.n.sampled: expected the column whose ids are drawn"),
    ],
)
def test_a_wrong_column_is_refused(given, told):
    with pytest.raises(ConfigError, match=told):
        columns_of(given)


@pytest.mark.parametrize(
    ("features", "told"),
    [
        ({"dense": ["a", "bb"]}, "data.features.dense=.*: «bb» is no input in data.columns. Did you mean b?"),
        ({"dense": "a"}, "data.features.dense=a: expected a list of columns"),
        ({"one": ["a"], "two": ["a"]}, "data.features: «a» is in two places"),
        ({"c": ["a"]}, "data.features.c: a column has this name"),
        ({"mixed": ["a", "c"]}, "data.features.mixed: expected columns with one value of the same kind; «c» is"),
        (
            {"mixed": ["c", "k"]},
            "«k» is of the kind category with a vocabulary that grows, «c» is of the kind category",
        ),
    ],
)
def test_a_wrong_stack_is_refused(tmp_path, features, told):
    given = {"a": "number", "b": "number", "c": "category", "k": {"category": {"grows": True}}}
    with pytest.raises(ConfigError, match=told):
        dataset_of(tmp_path, given, {"a": [1], "b": [1], "c": ["x"], "k": ["x"]}, features=features)


def test_what_was_learned_is_cached_and_a_damaged_cache_is_made_anew(tmp_path):
    given, rows = {"a": {"number": {"standardize": True}}, "c": "category"}, {"a": [1, 2], "c": ["x", "y"]}
    first, batch = batch_of(tmp_path, given, rows)
    (path,) = (tmp_path / "tables").glob("*.npz")
    written = path.stat()
    again, same = batch_of(tmp_path, given, rows)
    assert path.stat().st_mtime_ns == written.st_mtime_ns and again.numbering == first.numbering
    assert all((same[name] == batch[name]).all() for name in batch)
    path.write_bytes(path.read_bytes()[:50])
    assert batch_of(tmp_path, given, rows)[0].numbering == first.numbering
    assert path.stat().st_ino != written.st_ino


def test_the_numbering_changes_with_the_vocabulary_alone(tmp_path):
    def found(words, settings):
        return dataset_of(tmp_path / str(len(words)), {"c": {"category": settings}}, {"c": words}).numbering

    assert found(["a", "b"], {}) == found(["b", "a", "b", "a"], {})
    assert found(["a", "b"], {}) != found(["a", "b", "b"], {}) != found(["a", "b", "b"], {"max_size": 1})


def test_what_was_learned_is_written_as_strings_and_numbers(tmp_path):
    given = {"a": {"number": {"standardize": True}}, "c": "category"}
    dataset = dataset_of(tmp_path, given, {"a": [1, 3], "c": ["ü", "ü"]}, validation={"a": [9], "c": ["new"]})
    dataset.save_learned(tmp_path)
    with np.load(tmp_path / "table.npz") as learned:
        assert set(learned.files) == {"a/mean", "a/deviation", "c/vocabulary", "c/vocabulary_offsets", "c/first_id"}
        assert (learned["a/mean"], learned["a/deviation"]) == (2, 1)
        assert learned["c/vocabulary"].tobytes() == "ü".encode() and learned["c/vocabulary_offsets"].tolist() == [0, 2]


KINDS_BY_NAME = {
    "number": number.Number,
    "category": category.Category,
    "categories": categories.Categories,
    "text": text.Text,
    "label": label.Label,
    "weight": weight.Weight,
    "group": group.Group,
    "id": id_column.Id,
    "sampled": sampled.Sampled,
}


def test_each_kind_is_found_by_its_name():
    assert set(KINDS) == set(KINDS_BY_NAME)
    given = {name: name for name in KINDS if name != "sampled"} | {"sampled": {"sampled": {"from": "category"}}}
    assert {one.name: type(one) for one in columns_of(given)} == KINDS_BY_NAME
    assert all(kind.kind == name for name, kind in KINDS_BY_NAME.items())


def test_the_type_of_a_kind_says_what_it_has():
    """No method of a kind is without meaning for it."""
    for kind in KINDS_BY_NAME.values():
        assert issubclass(kind, InputColumn) == (kind.role is Role.INPUT)
        assert issubclass(kind, FeatureColumn) == (kind.role not in (Role.KEPT, Role.DRAWN))
        assert not inspect.isabstract(kind)


BAD = {"x": [0, np.inf, 2, 3, 4, 5], "item": [0, 1, 7, 2, 8, 3], "y": [0, 1, 0, 1, None, None], "tags": [["a"]] * 6}
BAD_KINDS = {
    "x": {"number": {"standardize": True}},
    "item": {"category": {"ids": 5}},
    "y": "label",
    "tags": "categories",
}


def test_rows_with_bad_cells_are_skipped_everywhere(tmp_path):
    rows = BAD | {"tags": [["a"], ["b"], ["c"], ["d"], [], ["f"]]}
    skip = BadRows("skip", 10)
    dataset, batch = batch_of(tmp_path, BAD_KINDS, rows, validation=rows, bad_rows=skip)
    assert (dataset.train_size, dataset.validation_size) == (2, 2)
    assert batch["item"].tolist() == [0, 2] == dataset.validation_batch(0, 2)["item"].tolist()
    assert batch["x"].tolist() == [-1, 1] and dataset.table_features["tags"].size == 3
    assert dataset.notes == ("8 bad rows are skipped (data.on_bad_row)",)
    again = dataset_of(tmp_path, BAD_KINDS, rows, validation=rows, bad_rows=skip)
    assert again.train_size == 2 and again.contents() == dataset.contents()
    fine = {name: [rows[name][place] for place in (0, 3)] for name in rows}
    assert dataset_of(tmp_path, BAD_KINDS, fine).contents() != dataset.contents()


def test_the_first_bad_rows_are_named_in_the_log(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(bad_cells, "NAMED_ROWS", 2)
    with caplog.at_level("WARNING", logger=bad_cells.__name__):
        dataset_of(tmp_path, BAD_KINDS, BAD, bad_rows=BadRows("skip", 10))
    assert [record.getMessage() for record in caplog.records] == [
        "skipped a bad row: data.columns.x.number: row 2 of the rows for train has an infinite number.",
        "skipped a bad row: data.columns.item.category: row 3 of the rows for train has id 7; expected 0 to 4.",
    ]


def test_too_many_bad_rows_end_the_run(tmp_path):
    with pytest.raises(DataError, match=r"data.columns.y.label, data.max_bad_rows=3: more than 3 bad rows; .*row 6"):
        dataset_of(tmp_path, BAD_KINDS, BAD, bad_rows=BadRows("skip", 3))
    bad = {name: values[4:] for name, values in BAD.items()}
    with pytest.raises(DataError, match="no rows to train on"):
        dataset_of(tmp_path, BAD_KINDS, bad, bad_rows=BadRows("skip", 10))


def test_each_good_row_has_a_number():
    skipped = np.array([0, 1, 4, 9])
    good = GoodRows(10, skipped)
    assert good.rows(np.arange(good.count)).tolist() == [2, 3, 5, 6, 7, 8]
    assert GoodRows(3, None).rows(np.arange(3)).tolist() == [0, 1, 2]
