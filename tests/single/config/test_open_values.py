"""Keys below a value that only the function of a group knows, such as the columns of a table."""

import pytest

from parallax_runner.config.compose import Composer
from parallax_runner.config.rules import free_groups
from parallax_runner.driver.check import validated
from parallax_runner.errors import ConfigError

COLUMNS = "data.columns={user: {category: {min_count: 2}}, price: {number: {buckets: [1, 2.5]}}, liked: label}"
TABLE = ("model=tabular", "data.train=missing.csv", "run_dir=nowhere")


def config_of(*arguments):
    return validated(Composer().job([*TABLE, *arguments]))


def test_a_value_that_is_null_in_the_file_takes_keys_at_any_depth():
    found = config_of(COLUMNS, "data.partition={fractions: {validation: 0.1}}").data
    assert found["columns"]["user"]["category"]["min_count"] == 2
    assert list(found["columns"]["price"]["number"]["buckets"]) == [1, 2.5]
    assert found["partition"]["fractions"]["validation"] == 0.1


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("data.colums={x: number}", "data.colums.*unknown key.*Did you mean data.columns"),
        ("data.shuffle={x: number}", "data.shuffle.*"),
        ("+data.format.x=1", "data.format"),
        ("data.max_bad_rows=many", "data.max_bad_rows=many .*expected an integer"),
    ],
)
def test_no_other_value_takes_keys(argument, told):
    with pytest.raises(ConfigError, match=told):
        config_of(COLUMNS, argument)


def test_the_nearest_declared_key_decides():
    declared = {"data.columns": None, "data.open": {}, "data.open.closed": 5, "data.closed": 5}
    answers = {
        **{"data.columns.a": True, "data.columns.a.b.c": True, "data.open.x": True},
        **{"data.open.closed.x": False, "data.closed.x": False, "data.other": False},
    }
    assert {key: free_groups._is_in_open_mapping(key, declared) for key in answers} == answers
