"""Text to word ids: numbering by frequency, division for validation, the cache."""

import errno
import os
import shutil
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_runner.data import cache_folder, checksums, token_cache
from parallax_runner.data.text import WORDS
from parallax_runner.data.text_files import find_files
from parallax_runner.data.token_cache import load_corpus
from parallax_runner.data.tokens import (
    END_OF_SENTENCE,
    UNKNOWN,
    TextFile,
    number_by_frequency,
    split_names,
    tokenize_files,
)
from parallax_runner.errors import ConfigError, DataError


def write(folder, **texts):
    """Write each text to folder/NAME.txt and return the files."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return find_files(folder)


def words_of(corpus, ids):
    return [corpus.vocabulary[number] for number in ids]


def test_sentences_end_and_blank_lines_are_skipped(tmp_path):
    files = write(tmp_path / "a", train="the cat\n\n   \nthe dog\n")
    validation = write(tmp_path / "b", validation="a\tcat\n")
    corpus = tokenize_files(files, validation_files=validation, tokenizer=WORDS, vocab_size=10)
    assert words_of(corpus, corpus.train) == ["the", "cat", "</s>", "the", "dog", "</s>"]
    assert words_of(corpus, corpus.validation) == ["<unk>", "cat", "</s>"]  # only training words are counted
    assert corpus.train.dtype == corpus.validation.dtype == np.int32


def test_ids_descend_in_frequency_then_by_word():
    words = ["b", "a", "d", "c", END_OF_SENTENCE]
    vocabulary, ids = number_by_frequency(words, np.array([2, 2, 1, 5, 3]), vocab_size=10)
    assert vocabulary == ["c", "</s>", "a", "b", "d", "<unk>"]
    assert ids.tolist() == [3, 2, 4, 0, 1]


def test_rare_words_count_as_unknown():
    words = ["a", "b", "c", "d", UNKNOWN, END_OF_SENTENCE]
    vocabulary, ids = number_by_frequency(words, np.array([4, 3, 2, 2, 1, 1]), vocab_size=4)
    assert vocabulary == ["<unk>", "a", "b", "</s>"]  # 2 + 2 + 1 unknown
    assert ids.tolist() == [1, 2, 0, 0, 0, 3]


@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=30), vocab_size=st.integers(3, 20))
def test_ids_stay_below_vocab_size(counts, vocab_size):
    words = [f"w{number}" for number in range(len(counts))]
    vocabulary, ids = number_by_frequency(words, np.array(counts), vocab_size)
    assert len(vocabulary) == len(set(vocabulary)) <= vocab_size
    assert {UNKNOWN, END_OF_SENTENCE} <= set(vocabulary)
    assert ((ids >= 0) & (ids < vocab_size)).all()
    frequencies = np.bincount(np.repeat(ids, counts), minlength=len(vocabulary))
    assert (np.diff(frequencies) <= 0).all()


@given(names=st.sets(st.text(min_size=1), min_size=2, max_size=200).map(sorted))
def test_names_are_divided_once_and_for_all(names):
    train, validation = split_names(names)
    assert sorted([*train, *validation]) == names
    assert train == sorted(train) and validation == sorted(validation)
    assert len(validation) == max(1, round(0.05 * len(names)))
    assert set(split_names(names[::-1])[1]) == set(validation)  # by name, not by place


def test_directory_is_divided_by_file(tmp_path):
    files = write(tmp_path, **{f"f{number}": f"w{number} w{number}\n" * 3 for number in range(20)})
    corpus = tokenize_files(files, validation_files=None, tokenizer=WORDS, vocab_size=100)
    assert len(corpus.validation) == 9
    assert set(words_of(corpus, corpus.validation)) == {UNKNOWN, END_OF_SENTENCE}  # the word of that file alone
    names = {word for word in words_of(corpus, corpus.train) if word.startswith("w")}
    assert len(names) == 19


def test_single_file_is_divided_by_blocks_of_lines(tmp_path):
    files = write(tmp_path, all="".join(f"w{number}\n" for number in range(2000)))
    corpus = tokenize_files(files, validation_files=None, tokenizer=WORDS, vocab_size=5000)
    assert (len(corpus.train), len(corpus.validation)) == (3800, 200)
    lines = [int(word[1:]) for word in words_of(corpus, corpus.train)[::2]]
    assert lines == sorted(lines)
    missing = sorted(set(range(2000)) - set(lines))
    assert len(missing) == 100 and all(set(range(n // 50 * 50, n // 50 * 50 + 50)) <= set(missing) for n in missing)


def test_few_files_are_divided_by_lines_for_one_may_be_most_of_the_text(tmp_path):
    sizes = {"wiki.train": 19000, "wiki.valid": 500, "wiki.test": 500}
    files = write(tmp_path, **{name: "w\n" * size for name, size in sizes.items()})
    corpus = tokenize_files(files, validation_files=None, tokenizer=WORDS, vocab_size=5000)
    assert len(corpus.validation) == 0.05 * 2 * 20000


def test_linked_folders_are_read_once(tmp_path):
    write(tmp_path / "news", a="x\n")
    files = write(tmp_path / "corpus", readme="x\n")
    (tmp_path / "corpus" / "news").symlink_to(tmp_path / "news")
    (tmp_path / "news" / "round").symlink_to(tmp_path / "corpus")
    found = find_files(tmp_path / "corpus")
    assert [file.name for file in found] == ["news/a.txt", *(file.name for file in files)]


def test_small_vocabulary_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.vocab_size=2"):
        tokenize_files(write(tmp_path, a="x\n"), validation_files=None, tokenizer=WORDS, vocab_size=2)


def load_cached(files, cache_dir, **changed):
    arguments = {
        "tokenizer": WORDS,
        "vocab_size": 10,
        "cache_dir": cache_dir and str(cache_dir),
        "source": "here",
    } | changed
    return load_corpus(files, **arguments)


def folders(cache_dir):
    """The folders with tokens; beside them are their locks."""
    return [path for path in cache_dir.iterdir() if path.is_dir()]


def test_second_load_reads_no_text(tmp_path, monkeypatch):
    files = write(tmp_path / "text", a="x y\n", b="y\n")
    first = load_cached(files, tmp_path / "cache")
    monkeypatch.setattr(token_cache, "tokenize_files", None)
    second = load_cached(files, tmp_path / "cache")
    np.testing.assert_array_equal(first.train, second.train)
    np.testing.assert_array_equal(first.validation, second.validation)
    assert first.vocabulary == second.vocabulary
    assert isinstance(second.train, np.memmap)


def test_changes_are_noticed(tmp_path):
    files = write(tmp_path / "text", a="x y\n", b="y\n")
    cache = tmp_path / "cache"
    load_cached(files, cache)
    load_cached(files, cache, vocab_size=11)
    load_cached(files, cache, validation_files=files)
    load_cached([TextFile("renamed", files[0].path), files[1]], cache)
    load_cached(write(tmp_path / "text", a="x y z\n"), cache)
    before = files[1].path.stat()
    os.utime(files[1].path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    load_cached(files, cache)
    assert len(folders(cache)) == 6


def load_in_threads(number, files, cache_dir):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(load_cached(files, cache_dir).train.tolist()))
        for _ in range(number)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    return found


def count_calls(monkeypatch):
    calls, tokenize = [], token_cache.tokenize_files
    monkeypatch.setattr(token_cache, "tokenize_files", lambda *a, **b: (calls.append(a), tokenize(*a, **b))[1])
    return calls


def test_of_several_that_need_the_same_tokens_one_makes_them(tmp_path, monkeypatch):
    files = write(tmp_path / "text", a="x y\n", b="y\n")
    calls = count_calls(monkeypatch)
    found = load_in_threads(4, files, tmp_path / "cache")
    assert found == [load_cached(files, tmp_path / "elsewhere").train.tolist()] * 4
    assert len(calls) == 2, "once in each folder"


def test_concurrent_writers_without_locks_agree_and_leave_one_folder(tmp_path, monkeypatch):
    files = write(tmp_path / "text", a="x y\n", b="y\n")
    together = threading.Barrier(4)
    publish = cache_folder.CacheFolder.publish

    def publish_together(*arguments):
        together.wait(timeout=20)
        publish(*arguments)

    monkeypatch.setattr(cache_folder.fcntl, "flock", lambda *_: None)
    monkeypatch.setattr(cache_folder.CacheFolder, "publish", publish_together)
    found = load_in_threads(4, files, tmp_path / "cache")
    assert found == [found[0]] * 4
    assert len(folders(tmp_path / "cache")) == 1


def test_failed_write_leaves_nothing_and_names_the_remedy(tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(token_cache.np, "save", full)
    with pytest.raises(DataError, match=r"No space left on device.*data\.cache_dir"):
        load_cached(write(tmp_path / "text", a="x\n", b="y\n"), tmp_path / "cache")
    assert folders(tmp_path / "cache") == []


@pytest.mark.parametrize("error", [OSError("5 requested and 0 written"), PermissionError(13, "Permission denied")])
def test_a_cache_that_cannot_be_used_is_told_with_its_reason(tmp_path, monkeypatch, error):
    files = write(tmp_path / "text", a="x\n", b="y\n")

    def fail(*_arguments):
        raise error

    monkeypatch.setattr(token_cache.np, "save", fail)
    with pytest.raises(DataError, match=r"text: (5 requested and 0 written|Permission denied)\. Set data\.cache_dir"):
        load_cached(files, tmp_path / "cache")
    monkeypatch.setattr(cache_folder.Path, "exists", fail)
    with pytest.raises(DataError, match=r"tokenized text: (5 requested|Permission denied).*Set data\.cache_dir"):
        load_cached(files, tmp_path / "cache")


def test_another_users_cache_is_not_called_damaged(tmp_path, monkeypatch):
    files = write(tmp_path / "text", a="x\n", b="y\n")
    load_cached(files, tmp_path / "cache")

    def refuse(path, **_options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(token_cache.np, "load", refuse)
    with pytest.raises(DataError, match=r"train\.npy: cannot be read, because it belongs to another user"):
        load_cached(files, tmp_path / "cache")


def test_default_cache_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    files = write(tmp_path / "text", a="x\n", b="y\n")
    load_cached(files, None)
    assert len(folders(tmp_path / "xdg" / "parallax_runner")) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    load_cached(files, None)
    assert len(folders(tmp_path / "home" / ".cache" / "parallax_runner")) == 1


def change_a_byte(path, place=-1):
    """As a disk does: neither size nor time of change tell of it, and the ids stay in range."""
    state = path.stat()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def take_the_place(path, make):
    path.unlink()
    make(path)


def contents(corpus):
    """Read at once: of a file that is cut later, nothing can be read any more."""
    return corpus.train.tolist(), corpus.validation.tolist(), corpus.vocabulary


DAMAGE = {
    "a changed id": lambda folder: change_a_byte(folder / "train.npy", -4),
    "a changed word": lambda folder: change_a_byte(folder / "vocabulary.txt", 0),
    "cut": lambda folder: os.truncate(folder / "validation.npy", 3),
    "empty": lambda folder: (folder / "train.npy").write_bytes(b""),
    "deleted": lambda folder: (folder / "vocabulary.txt").unlink(),
    "no checksums": lambda folder: (folder / "checksums.json").unlink(),
    "changed checksums": lambda folder: change_a_byte(folder / "checksums.json", 30),
    "emptied checksums": lambda folder: (folder / "checksums.json").write_text("{}"),
    "other checksums": lambda folder: (folder / "checksums.json").write_text("[]"),
    "a FIFO for tokens": lambda folder: take_the_place(folder / "train.npy", os.mkfifo),
    "a device for tokens": lambda folder: take_the_place(
        folder / "train.npy", lambda path: path.symlink_to("/dev/zero")
    ),
    "a FIFO for checksums": lambda folder: take_the_place(folder / "checksums.json", os.mkfifo),
    "deep checksums": lambda folder: (folder / "checksums.json").write_text("[" * 100_000),
    "a FIFO": lambda folder: (shutil.rmtree(folder), os.mkfifo(folder)),
    "a file": lambda folder: (shutil.rmtree(folder), folder.write_text("")),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("was_checked", [False, True])
def test_a_damaged_cache_is_made_anew(damage, was_checked, tmp_path, caplog):
    files = write(tmp_path / "text", a="x y x\n", b="y z\n")
    before = contents(load_cached(files, tmp_path / "cache"))
    if was_checked:
        load_cached(files, tmp_path / "cache")
    (folder,) = folders(tmp_path / "cache")
    DAMAGE[damage](folder)
    assert contents(load_cached(files, tmp_path / "cache")) == before
    assert f"{folder}: damaged cache of tokenized text, making it anew" in caplog.text
    assert folders(tmp_path / "cache") == [folder]
    caplog.clear()
    load_cached(files, tmp_path / "cache")
    assert caplog.text == ""


def test_checksums_are_compared_once_and_again_after_a_day(tmp_path, monkeypatch):
    files = write(tmp_path / "text", a="x\n", b="y\n")
    load_cached(files, tmp_path / "cache")
    read, read_sum, now = [], checksums._sum, time.time()
    monkeypatch.setattr(checksums, "_sum", lambda path: (read.append(path.name), read_sum(path))[1])
    for _ in range(3):
        load_cached(files, tmp_path / "cache")
    assert sorted(read) == ["train.npy", "validation.npy", "vocabulary.txt"]
    monkeypatch.setattr(checksums.time, "time", lambda: now + checksums.CHECKED_FOR_SECS + 60)
    load_cached(files, tmp_path / "cache")
    assert len(read) == 6
    monkeypatch.setattr(checksums.time, "time", lambda: now - 60)
    load_cached(files, tmp_path / "cache")
    assert len(read) == 9, "the clock was set back"


@pytest.mark.parametrize(
    "note",
    [
        lambda path: take_the_place(path, os.mkfifo),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text(f'{{"time": {"9" * 400}}}'),
    ],
    ids=["a FIFO", "deep", "a time beyond floats"],
)
def test_a_damaged_note_of_the_last_comparison_means_another_one(note, tmp_path, caplog):
    files = write(tmp_path / "text", a="x y\n", b="y\n")
    before = contents(load_cached(files, tmp_path / "cache"))
    load_cached(files, tmp_path / "cache")
    (path,) = (tmp_path / "cache").glob("*/checked.json")
    note(path)
    assert contents(load_cached(files, tmp_path / "cache")) == before
    assert "time" in path.read_text()
    assert caplog.text == ""


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_no_obstacle(number, tmp_path, monkeypatch, caplog):
    """Lustre and NFS say so of themselves."""

    def refuse(*_arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(cache_folder.fcntl, "flock", refuse)
    files = write(tmp_path / "text", a="x y\n", b="y\n")
    before = contents(load_cached(files, tmp_path / "cache"))
    assert contents(load_cached(files, tmp_path / "cache")) == before
    (folder,) = folders(tmp_path / "cache")
    change_a_byte(folder / "train.npy", -4)
    assert contents(load_cached(files, tmp_path / "cache")) == before
    assert f"cannot be locked: {os.strerror(number)}" in caplog.text


@pytest.mark.parametrize("has_locks", [True, False])
def test_processes_that_find_the_same_damage_make_it_anew(has_locks, tmp_path, monkeypatch):
    files = write(tmp_path / "text", a="x y\n", b="y\n")
    before = load_cached(files, tmp_path / "cache").train.tolist()
    (folder,) = folders(tmp_path / "cache")
    change_a_byte(folder / "train.npy", -4)
    calls = count_calls(monkeypatch)
    if has_locks:
        assert load_in_threads(6, files, tmp_path / "cache") == [before] * 6
        assert len(calls) == 1
        return
    together = threading.Barrier(6)
    damage_of = cache_folder.damage_of
    monkeypatch.setattr(cache_folder.fcntl, "flock", lambda *_: None)
    monkeypatch.setattr(cache_folder, "damage_of", lambda path: (damage_of(path), together.wait(timeout=20))[0])
    assert load_in_threads(6, files, tmp_path / "cache") == [before] * 6
    assert folders(tmp_path / "cache") == [folder]


def test_a_damaged_cache_that_cannot_be_removed_is_named(tmp_path, monkeypatch):
    files = write(tmp_path / "text", a="x\n", b="y\n")
    load_cached(files, tmp_path / "cache")
    (folder,) = folders(tmp_path / "cache")
    (folder / "train.npy").write_bytes(b"")

    def refuse(path, _target):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(cache_folder.Path, "rename", refuse)
    with pytest.raises(DataError, match=r"train\.npy does not match its checksum\. Delete the directory"):
        load_cached(files, tmp_path / "cache")
