"""Other programs' words: each leads to a choice or a key that there is, and that is not found without the table."""

from pathlib import Path

import pytest

from parallax_runner.config import suggestions
from parallax_runner.config.comments import head_comment
from parallax_runner.config.compose import Composer
from parallax_runner.config.explain import known_keys
from parallax_runner.config.location import conf_dir
from parallax_runner.config.suggestions import (
    KEY_REMEDIES,
    OTHER_KEYS,
    nearest,
    nearest_key,
    other_names,
    plain_word,
    remedy_for_choice,
    remedy_for_key,
)
from parallax_runner.data.table.sources import FORMATS

GROUPS = ("model", "optimizer", "data", "comm")


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


@pytest.mark.parametrize("group", GROUPS)
def test_every_word_means_a_choice(group: str) -> None:
    words, options = other_names(group), choices(group)
    assert words and set(words.values()) <= set(options)
    assert not set(words) & set(options)
    assert all(plain_word(word) == word for word in words)


@pytest.mark.parametrize("group", GROUPS)
def test_every_word_earns_its_place(group: str) -> None:
    assert [word for word, choice in other_names(group).items() if nearest(word, choices(group)) == choice] == []


def test_every_word_means_a_key() -> None:
    keys = known_keys(Composer().job([]).config)
    names = {key.rpartition(".")[2] for key in keys if not key.startswith("hydra.")}
    words = OTHER_KEYS
    assert set(words.values()) <= names
    assert not set(words) & {plain_word(name) for name in names}
    assert all(plain_word(word) == word for word in words)


def test_what_no_key_expresses_has_a_remedy_that_names_a_key() -> None:
    assert "train.steps" in known_keys(Composer().job([]).config)
    assert all("train.steps" in remedy for remedy in KEY_REMEDIES.values())
    assert remedy_for_key("train.Num_Epochs") == KEY_REMEDIES["numepochs"]
    assert remedy_for_key("train.stesp") is None


def test_a_word_is_found_however_it_is_written() -> None:
    assert remedy_for_choice("comm", "Parameter-Server", choices("comm")) == "Did you mean comm=ps?"
    assert nearest_key("World_Size", ["cluster.workers", "cluster.servers"]) == "cluster.workers"


def test_a_word_of_another_group_means_nothing() -> None:
    assert remedy_for_choice("comm", "sgd", choices("comm")) is None
    assert remedy_for_choice("comm", "csv", choices("comm")) is None


def test_a_choice_is_found_by_the_words_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a word that otherwise tells how to read such a file."""
    table = tmp_path / "data" / "table.yaml"
    table.parent.mkdir()
    table.write_text("# Rows of a table.\n# Other names: parquet, arrow\n_target_: x.load\n")
    monkeypatch.setattr(suggestions, "conf_dir", lambda: tmp_path)
    assert head_comment(table.read_text()) == "Rows of a table."
    for word in ("Parquet", "arrow"):
        assert remedy_for_choice("data", word, ["table", "text"]) == "Did you mean data=table?"
    assert remedy_for_choice("data", "csv", ["table", "text"]) == "Use data=table data.format=csv."


@pytest.mark.parametrize("word", suggestions.REMEDIES["data"])
def test_the_word_for_files_leads_to_a_format_of_tables(word: str) -> None:
    remedy = remedy_for_choice("data", word.upper(), choices("data"))
    assert remedy is not None and remedy.startswith("Use data=table data.format=")
    assert remedy.removesuffix(".").partition("format=")[2] in FORMATS
