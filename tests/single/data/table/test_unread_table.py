"""A plan knows the features of files that are not converted, as far as the settings determine them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallax_runner.data.table.criteo import load as load_criteo
from parallax_runner.data.table.source import load
from parallax_runner.data.table.table_dataset import TableDataset
from parallax_runner.data.table.unread_table import UnreadTable
from parallax_runner.errors import ConfigError, DataError

FIXED: dict[str, Any] = {
    "hashed": {"category": {"hash": 9}},
    "known": {"category": {"ids": 5}},
    "words": {"text": {"hash": 30, "padded_to": 3}},
    "price": {"number": {"standardize": True}},
    "day": {"number": {"buckets": [1, 2]}},
    "drawn": {"sampled": {"from": "hashed", "count": 2}},
    "query": "group",
    "key": "id",
    "weight": "weight",
    "liked": {"label": {"classes": ["no", "yes"]}},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "rows.csv"
    names = [name for name in FIXED if name != "drawn"]
    file.write_text(",".join(names) + "\n" + "a,1,b c,2,1,q,k,1,yes\nb,2,,3,1,q,k,1,no\n", encoding="utf-8")
    return file


def loaded(path: Path, columns: Any, *, reads_rows: bool = False, **given: Any) -> Any:
    settings = {"seed": 1, "cache_dir": str(path.parent / "cache"), **given}
    return load(train=str(path), columns=columns, reads_rows=reads_rows, **settings)


def test_settings_of_fixed_sizes_determine_the_features(path: Path) -> None:
    given = {"features": {"ids": ["hashed", "known"]}}
    planned = loaded(path, FIXED, **given)
    assert isinstance(planned, UnreadTable) and planned.notes == ()
    assert not (path.parent / "cache").exists()
    read = loaded(path, FIXED, reads_rows=True, **given)
    assert isinstance(read, TableDataset)
    assert planned.table_features == read.table_features and planned.features == read.features
    assert (planned.labels, planned.sample_weight) == (read.labels, read.sample_weight) == ("liked", "weight")


def test_a_plan_reads_what_the_cache_has(path: Path) -> None:
    columns = {"hashed": "category", "liked": FIXED["liked"]}
    loaded(path, columns, reads_rows=True)
    assert isinstance(loaded(path, columns), TableDataset)


def test_a_vocabulary_has_its_largest_size_or_is_refused(path: Path) -> None:
    columns = {
        "hashed": {"category": {"max_size": 40, "oov": 2}},
        "words": {"text": {"max_size": 7}},
        "liked": FIXED["liked"],
    }
    planned = loaded(path, columns)
    assert [planned.table_features[name].size for name in ("hashed", "words")] == [42, 8]
    assert "«hashed», «words»" in planned.notes[0]
    with pytest.raises(DataError, match=r"columns\.words: the sizes of the vocabularies of «words» are unknown"):
        loaded(path, columns | {"words": "text"})


def test_the_files_are_found_and_have_the_columns(path: Path) -> None:
    with pytest.raises(DataError, match="there is no column hashd; the nearest name is hashed"):
        loaded(path, {"hashd": {"category": {"hash": 5}}})
    with pytest.raises(DataError, match="there is no such file or folder"):
        loaded(path.with_name("other.csv"), FIXED)
    with pytest.raises(ConfigError, match="either files for this part, or a share"):
        loaded(path, FIXED, validation=str(path), partition={"fractions": {"validation": 0.5}})


@pytest.mark.parametrize(
    ("given", "is_there"),
    [({}, False), ({"partition": {"fractions": {"validation": 0.5}}}, True), ({"validation": "rows.csv"}, True)],
)
def test_a_plan_knows_whether_there_are_validation_rows(
    given: dict[str, Any], is_there: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    assert bool(loaded(path, FIXED, **given).validation_size) == is_there


def test_there_are_no_rows(path: Path) -> None:
    planned = loaded(path, FIXED)
    for read in (planned.train_batch, planned.validation_batch):
        with pytest.raises(DataError, match=r"action=plan reads no rows .* Start the training once"):
            read(0, 1)


def test_criteos_features_are_fixed(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("1\t2\t3\tff\n")
    planned = load_criteo(
        train=str(tmp_path / "a.tsv"),
        dense_features=2,
        cardinalities=[50],
        seed=1,
        cache_dir=str(tmp_path / "cache"),
        reads_rows=False,
    )
    assert isinstance(planned, UnreadTable)
    assert {name: one.shape for name, one in planned.features.items()} == {
        "dense": (2,),
        "categorical": (1,),
        "label": (),
    }
