"""Other programs' words: each leads to a choice or a key that there is."""

from parallax_runner.config import synonyms
from parallax_runner.config.compose import Composer
from parallax_runner.config.explain import known_keys
from parallax_runner.config.location import conf_dir


def test_every_synonym_means_a_choice() -> None:
    assert synonyms.CHOICES
    for group, words in synonyms.CHOICES.items():
        choices = {path.stem for path in (conf_dir() / group).glob("*.yaml")}
        assert set(words.values()) <= choices, group
        assert not set(words) & choices, group
        assert all(synonyms.plain_word(word) == word for word in words)


def test_every_synonym_means_a_key() -> None:
    keys = known_keys(Composer().job([]).config)
    names = {key.rpartition(".")[2] for key in keys if not key.startswith("hydra.")}
    assert set(synonyms.KEYS.values()) <= names
    assert not set(synonyms.KEYS) & {synonyms.plain_word(name) for name in names}
    assert all(synonyms.plain_word(word) == word for word in synonyms.KEYS)


def test_a_word_is_found_however_it_is_written() -> None:
    assert synonyms.choice_meant("comm", "Parameter-Server") == "ps"
    assert synonyms.key_meant("World_Size") == "workers"
    assert synonyms.choice_meant("comm", "sgd") is None
