"""`data=criteo`: Criteo's layout becomes the features of models/dlrm_keras.py."""

import numpy as np
import pytest
import yaml

from parallax_runner.config.location import conf_dir
from parallax_runner.data.table.criteo import load
from parallax_runner.errors import ConfigError

ROWS = ["1\t1\t\t-2\t68fd1e64\t80e26c9b", "0\t0\t5\t100\t\t68fd1e64", "0\t\t\t\t287e684f\t"]
SIZES = {"dense_features": 3, "cardinalities": [1000, 50], "seed": 1, "shuffle": "off"}


def test_rows_become_features(tmp_path):
    import tensorflow as tf

    (tmp_path / "day_0").write_text("\n".join(ROWS) + "\n")
    dataset = load(train=str(tmp_path / "day_0"), cache_dir=str(tmp_path / "cache"), **SIZES)
    batch = dataset.train_batch(0, 3)
    expected = np.log1p([[1, 0, 0], [0, 5, 100], [0, 0, 0]]).astype(np.float32)
    np.testing.assert_allclose(batch["dense"], expected, rtol=1e-6)
    columns = [["68fd1e64", "", "287e684f"], ["80e26c9b", "68fd1e64", ""]]
    ids = [
        tf.strings.to_hash_bucket_fast(words, buckets).numpy()
        for words, buckets in zip(columns, SIZES["cardinalities"], strict=True)
    ]
    assert batch["categorical"].tolist() == np.stack(ids, axis=1).tolist()
    assert batch["label"].tolist() == [1, 0, 0]
    assert {name: (one.shape, one.dtype) for name, one in dataset.features.items()} == {
        "dense": ((3,), "float32"),
        "categorical": ((2,), "int64"),
        "label": ((), "float32"),
    }


def test_the_layout_is_that_of_criteo():
    configured = yaml.safe_load((conf_dir() / "data" / "criteo.yaml").read_text(encoding="utf-8"))
    assert configured["dense_features"] == 13 and len(configured["cardinalities"]) == 26


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"dense_features": 0}, "data.dense_features=0: expected 1 or more"),
        ({"cardinalities": []}, r"data.cardinalities=\[\]: expected at least one"),
        ({"cardinalities": [5, 0]}, r"data.cardinalities\[1\]=0: expected an integer, at least 1"),
        ({"shuffle": "ful"}, "data.shuffle=ful: expected full, blocks or off"),
        ({"partition": {"fraction": {}}}, "data.partition.fraction=.* Did you mean data.partition.fractions?"),
        ({"train": 5}, "data.train=5: expected a string or a list of strings"),
    ],
)
def test_a_wrong_value_is_refused_before_files_are_read(wrong, told):
    with pytest.raises(ConfigError, match=told):
        load(**{"train": "missing", **SIZES} | wrong)
