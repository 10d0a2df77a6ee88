"""What `action=evaluate` refuses before it starts a process."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from parallax_runner.actions.evaluate import Evaluate
from parallax_runner.config.frozen import from_plain
from parallax_runner.errors import ConfigError
from tests.single.small_models import BATCH, captured
from tests.single.train.one_rank import dataset


@pytest.mark.parametrize(
    ("has_loss", "rows", "said"),
    [
        (False, 3 * BATCH, "nothing can be evaluated: the model has no validation_loss"),
        (True, 0, "nothing can be evaluated: there are no validation examples"),
    ],
)
def test_a_model_without_a_loss_and_a_part_without_rows(has_loss: bool, rows: int, said: str) -> None:
    single = captured(optimizer="adam")
    single = single if has_loss else dataclasses.replace(single, validation_loss=None)
    config = from_plain({"action": "evaluate", "data": {"batch_size": BATCH}, "read": {"part": "validation"}})
    planned = SimpleNamespace(single=single, dataset=dataset(validation=rows))
    prepared: Any = SimpleNamespace(config=config, planned=planned)
    state: Any = None
    with pytest.raises(ConfigError) as raised:
        Evaluate().before_processes(prepared, state)
    assert said in str(raised.value)
