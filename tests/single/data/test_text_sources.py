"""`data=text` and `data=stdlib`: from files to windows."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from parallax_runner.data import stdlib, text
from parallax_runner.data.dataset import Feature
from parallax_runner.data.windows import cut_windows, spread
from parallax_runner.errors import ConfigError, DataError

SHARED = Path(__file__).parents[4] / "shared" / "data"
needs_shared_data = pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is absent")


@pytest.fixture
def load(tmp_path):
    """Return a loader of text with small sizes and a cache of its own."""

    def load_text(path, **changed):
        sizes = {"vocab_size": 50, "sequence_length": 4, "validation_examples": 10, "seed": 1}
        return text.load(path=str(path), cache_dir=str(tmp_path / "cache"), **(sizes | changed))

    return load_text


@pytest.fixture
def corpus(tmp_path):
    """Write a directory of a plain and a packed file."""
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("a b c d e f g h\n" * 30, encoding="utf-8")
    with gzip.open(folder / "b.txt.gz", "wt", encoding="utf-8") as packed:
        packed.write("A b\n" * 20)
    (folder / ".hidden").write_bytes(b"\xff\xfe")
    return folder


def test_windows_predict_each_token_once():
    windows = cut_windows(np.arange(11), sequence_length=3)
    assert windows.tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    assert cut_windows(np.arange(4), sequence_length=3).tolist() == [[0, 1, 2, 3]]
    assert cut_windows(np.arange(3), sequence_length=3).shape == (0, 4)


def test_spread_takes_rows_from_everywhere():
    assert spread(np.arange(10), 5).tolist() == [0, 2, 4, 6, 8]
    assert spread(np.arange(3), 5).tolist() == [0, 1, 2]
    assert spread(np.arange(3), 0).tolist() == []


def test_batches_have_the_announced_features(load, corpus):
    dataset = load(corpus, validation_path=str(corpus / "a.txt"))
    assert dataset.features == {"words": Feature((4,), "int32"), "next_words": Feature((4,), "int32")}
    assert dataset.words_per_example == 4
    assert dataset.train_size == (30 * 9 + 20 * 3 - 1) // 4
    assert dataset.validation_size == 10
    batches = [dataset.train_batch(dataset.train_size - 3, 7), dataset.validation_batch(3, 7)]
    for batch in batches:
        assert {name: (array.shape, array.dtype.name) for name, array in batch.items()} == {
            "words": ((7, 4), "int32"),
            "next_words": ((7, 4), "int32"),
        }
        np.testing.assert_array_equal(batch["words"][:, 1:], batch["next_words"][:, :-1])


def test_validation_beyond_the_end_is_an_error(load, corpus):
    dataset = load(corpus)
    with pytest.raises(IndexError):
        dataset.validation_batch(dataset.validation_size, 1)


def test_seed_decides_the_order_only(load, corpus):
    first, second = load(corpus), load(corpus, seed=2)
    epochs = [dataset.train_batch(0, dataset.train_size)["words"].tolist() for dataset in (first, second)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])


def test_lowercase_joins_words(load, corpus):
    plain = load(corpus / "b.txt.gz", validation_path=str(corpus / "a.txt"))
    lower = load(corpus / "b.txt.gz", validation_path=str(corpus / "a.txt"), lowercase=True)
    unknown = [(data.validation_batch(0, 10)["words"] == 3).mean() for data in (plain, lower)]  # after A or a, b, </s>
    assert unknown[0] > unknown[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", r"data\.path=.*absent: no such file"),
        ("empty", r"data\.path=.*empty: this directory is empty"),
        ("blank", "no text to train on"),
        ("binary", "expected UTF-8 text"),
        ("broken.gz", "broken.gz: cannot be read"),
        ("short", "3 tokens to train on, but one example needs 5"),
    ],
)
def test_unusable_sources_are_named(load, tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank").write_text(" \n\n", encoding="utf-8")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "broken.gz").write_bytes(gzip.compress(b"a b c\n")[:-6])
    (tmp_path / "short").write_text("a b\n", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load(tmp_path / name)
    assert DataError.exit_status == 2


@pytest.mark.parametrize("write", [Path.write_bytes, lambda path, text: path.write_bytes(gzip.compress(text))])
def test_text_in_another_encoding_is_named_by_its_line(load, tmp_path, write):
    """Far behind the first block of the decoder, which counts bytes from the start of a block."""
    path = tmp_path / ("latin1.gz" if write is not Path.write_bytes else "latin1")
    write(path, b"w1 w2 w3\n" * 10_000 + b"caf\xe9\nw4\n")
    with pytest.raises(DataError, match=r"line 10001 has the byte 0xe9 at column 4 \(byte 90003 of the text\): "):
        load(path)


def test_missing_validation_path_is_named(load, corpus):
    with pytest.raises(DataError, match=r"data\.validation_path=nowhere"):
        load(corpus, validation_path="nowhere")


@pytest.mark.parametrize("wrong", [{"sequence_length": 0}, {"validation_examples": -1}, {"vocab_size": 1}])
def test_sizes_out_of_range_are_refused(load, corpus, wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=f"data.{key}={wrong[key]}"):
        load(corpus, **wrong)


def test_python_tokens():
    line = '    x1 += 0xff*1.5e3  # naïve "a_b"\n'
    tokens = ["x1", "+", "=", "0xff", "*", "1.5e3", "#", "naïve", '"', "a_b", '"']
    assert stdlib.PYTHON_SOURCE.split(line) == tokens


@pytest.fixture
def small_library(tmp_path, monkeypatch):
    """Put a small standard library in the place of the real one."""
    root = tmp_path / "lib"
    for name in ("abc.py", "json/decoder.py", "site-packages/other.py", "notes.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("import this\n" * 40, encoding="utf-8")
    (root / "badly_encoded.py").write_bytes(b"# \xe9\n" * 40)
    monkeypatch.setattr(stdlib.sysconfig, "get_paths", lambda: {"stdlib": str(root)})
    return root


def test_stdlib_reads_its_own_sources_only(small_library, tmp_path):
    dataset = stdlib.load(
        vocab_size=10, sequence_length=2, validation_examples=100, seed=1, cache_dir=str(tmp_path / "cache")
    )
    assert dataset.train_size + dataset.validation_size == (240 - 1) // 2 + (120 - 1) // 2  # three files of 120 tokens


def test_interpreter_without_sources_is_told_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(stdlib.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(DataError, match="Use data=text"):
        stdlib.load(vocab_size=10, sequence_length=2, validation_examples=1, seed=1)


@needs_shared_data
def test_wikitext(load):
    dataset = load(
        SHARED / "wikitext-2" / "valid.txt",
        validation_path=str(SHARED / "wikitext-2" / "test.txt"),
        vocab_size=20000,
        sequence_length=20,
        validation_examples=500,
    )
    assert 10_000 < dataset.train_size < 12_000
    assert dataset.validation_size == 500
    words = dataset.train_batch(0, dataset.train_size)["words"]
    frequencies = np.bincount(words.ravel())
    assert frequencies[0] > 9_000 and words.max() < 20_000  # "the" or the end of a sentence


@needs_shared_data
def test_packed_sentences(load):
    dataset = load(SHARED / "multi30k" / "train.en.gz", vocab_size=5000, sequence_length=10)
    assert 35_000 < dataset.train_size < 45_000


def test_a_text_that_is_not_divided_says_why_it_has_no_validation(load, tmp_path):
    short, longer = tmp_path / "text8", tmp_path / "longer"
    short.write_text("a b c d " * 1000)
    longer.write_text("a b c d e f g h\n" * 51)
    told = f"the validation part of {short} has 0 tokens, but one example needs 5. A single file of up to 50 lines"
    assert load(short).validation_size == 0
    assert load(short).missing_validation.startswith(told)
    assert load(short, validation_examples=0).missing_validation == ""
    assert load(short, validation_path=str(longer)).missing_validation == ""
    assert load(longer).missing_validation == ""
    tiny = tmp_path / "tiny"
    tiny.write_text("a b c\n")
    few = load(longer, validation_path=str(tiny))
    assert few.missing_validation == f"the text at data.validation_path={tiny} has 4 tokens, but one example needs 5"
