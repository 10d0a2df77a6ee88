"""Passwords and tokens are in nothing that is written."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from parallax_runner.config.tracking_uri import password_remedy
from parallax_runner.errors import ConfigError
from parallax_runner.files.credentials import (
    MaskingFormatter,
    has_credentials,
    masked,
    masked_uri,
    masked_values,
)
from parallax_runner.process.exit_status import tell
from parallax_runner.track.mlflow.destination import chosen_uri

URIS = {
    "http://user:s3cret@host:5000/a": "http://***@host:5000/a",
    "https://s3cret@host": "https://***@host",
    "https://user:s3@cret@host/a@b": "https://***@host/a@b",
    "http://host/?access_token=s3cret&x=1": "http://host/?access_token=***&x=1",
    "postgresql+psycopg2://user:s3/cret@host/db?sslmode=require": "postgresql+psycopg2://user:***@host/db?sslmode=require",
    "mysql://host/db?user=u&password=s3cret": "mysql://host/db?user=u&password=***",
    "mssql://:s3cret@host/db": "mssql://:***@host/db",
}
# Where a URI ends in a text, nobody can tell; SQLAlchemy takes all of these.
ODD_URIS = {
    'postgresql://u:s3"cret@h/db': "postgresql://u:***@h/db",
    "postgresql://u:s3<cr>et x@h/db": "postgresql://u:***@h/db",
    "postgresql://u:s3@cr/e?t#@h/db": "postgresql://u:***@h/db",
    "postgresql://u@corp:s3cret@h/db": "postgresql://u@corp:***@h/db",
    'http://u:s3"cr et@h/a@b': "http://***@h/a@b",
    "mysql://h/db?password=s3'c r\"et&x=1": "mysql://h/db?password=***&x=1",
}
PLAIN = (
    *("http://host:5000/a@b", "postgresql://user@host:5432/db", "sqlite:///mlflow.db", "databricks", "databricks://me"),
    *("https://host/path?step=1", "user@host", "a=b", "1:2@3"),
    *("mysql+pymysql://host/db?user=me@corp", "mysql+pymysql://host:3306/db?user=me%40corp"),
)


@pytest.mark.parametrize("uri", URIS)
def test_a_uri_has_a_password(uri: str) -> None:
    assert has_credentials(uri)
    assert masked(uri) == URIS[uri]
    assert masked(f"cannot reach '{uri}' now, me@home") == f"cannot reach '{URIS[uri]}' now, me@home".replace("''", "'")
    assert masked(URIS[uri]) == URIS[uri]


@pytest.mark.parametrize("uri", PLAIN)
def test_a_uri_has_none(uri: str) -> None:
    assert not has_credentials(uri)
    assert masked(uri) == uri


@pytest.mark.parametrize("text", ["data.path=hdfs://host:8020/data/me@corp/x", "a;max_tokens=5", "a?tokenizer=bert"])
def test_what_is_no_password_stays(text: str) -> None:
    assert masked(text) == text
    assert masked(f"{text}&auth_token=s3cret") == f"{text}&auth_token=***"


@pytest.mark.parametrize("uri", ODD_URIS)
def test_a_password_may_have_any_character(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_credentials(uri)
    assert masked_uri(uri) == ODD_URIS[uri]
    assert not has_credentials(ODD_URIS[uri])
    with pytest.raises(ConfigError) as refused:
        chosen_uri(uri)
    assert f"tracking.uri={ODD_URIS[uri]}: " in str(refused.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert masked(f"cannot reach '{uri}'") == f"cannot reach '{ODD_URIS[uri]}'"


def test_a_port_that_is_read_as_a_password_is_told() -> None:
    """As SQLAlchemy reads it, the host of this address is «corp»."""
    uri = "mysql+pymysql://host:3306/db?user=me@corp"
    assert make_url(uri).host == "corp"
    assert "write %40 for each @ in the URI" in password_remedy(uri)
    assert make_url(uri.replace("@", "%40")).query["user"] == "me@corp"
    for other in URIS:
        assert "%40" not in password_remedy(other)


def test_the_password_of_the_environments_address_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://u:s3%22cret@h/db")
    assert masked("with 's3%22cret' and 's3\"cret'") == "with '***' and '***'"
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", 's3"cret-and-more')
    assert masked('s3"cret-and-more') == "***", "one secret begins with another"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://mlflow:mlflow@h/mlflow")
    assert masked("mlflow.db") == "mlflow.db"


@pytest.mark.parametrize("name", ["OTHER_API_KEY", "OTHER_API_TOKEN", "OTHER_TRACKING_PASSWORD"])
def test_the_secrets_of_other_trackers_are_masked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert masked("with s3cret-key") == "with s3cret-key"
    monkeypatch.setenv(name, "s3cret-key")
    assert masked("with s3cret-key") == "with ***"


@pytest.mark.parametrize("name", ["OTHER_API_KEY_FILE", "POSTGRES_PASSWORD", "TRACKING_URI"])
def test_other_variables_may_have_common_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "postgres")
    assert masked("postgres") == "postgres"


def test_nested_values_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abcdefgh")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "a")
    value = {"a": ["http://u:p@h", 1, None], "b": {"c": "token abcdefgh"}}
    assert masked_values(value) == {"a": ["http://***@h", 1, None], "b": {"c": "token ***"}}


def test_errors_and_logs_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    error = ConfigError("tracking.uri=http://u:s3cret@h: wrong")
    assert str(error) == "tracking.uri=http://***@h: wrong"
    tell(error)
    record: Any = None
    try:
        raise RuntimeError("http://u:s3cret@h")
    except RuntimeError as unexpected:
        tell(unexpected)
        info = (type(unexpected), unexpected, unexpected.__traceback__)
        record = logging.LogRecord("a", logging.ERROR, "f", 1, "at %s", ("mysql://u:s3cret@h",), info)
    shown = MaskingFormatter("%(message)s").format(record)
    assert shown.startswith("at mysql://u:***@h") and "RuntimeError: http://***@h" in shown
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "s3cret" not in told + shown
