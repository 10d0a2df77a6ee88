"""Keys that come and go, trained by three ranks, then two, then one, beside the same layers in plain Keras."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.integration.growing_models import BATCH, OPTIMIZERS, load_passing_users
from tests.integration.growing_runs import (
    ROOT,
    TURNS,
    Values,
    checkpoint,
    has_key,
    of,
    train_by_three_two_one,
    write_conf,
)
from tests.integration.plain_growing import ENDS, SEED
from tests.shared import shared

MODELS = "_target_: tests.integration.growing_models."
FILES = {
    "model/mine": f"{MODELS}make_two_passing\noptimizer: adagrad\nlabels: y\n",
    "data/mine": f"{MODELS}load_passing_users\nseed: {SEED}\nbatch_size: {BATCH}\n",
}
TABLES = {"items": "item", "users": "user"}

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="session")
def runs_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the folder with the runs of an optimizer, and with the values of plain Keras."""

    def of_optimizer(optimizer: str) -> Path:
        def train(folder: Path) -> Path:
            write_conf(folder, FILES)
            command = [sys.executable, "-m", "tests.integration.plain_growing", str(folder), optimizer]
            plain = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert plain.returncode == 0, plain.stderr
            train_by_three_two_one(folder, ENDS, f"model.optimizer={optimizer}")
            return folder

        return shared(tmp_path_factory, f"beside_plain_{optimizer}", train)

    return of_optimizer


def plain(folder: Path, step: int) -> Values:
    with np.load(folder / f"plain_{step}.npz") as file:
        return dict(file)


@pytest.mark.parametrize(("turn", "step"), list(zip(TURNS, ENDS, strict=True)))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_number_of_ranks_equals_plain_keras(
    optimizer: str, turn: str, step: int, runs_of: Callable[[str], Path]
) -> None:
    """The maps are equal, also where no key is, and so are rows and slots up to the order of sums."""
    expected, found = plain(runs_of(optimizer), step), checkpoint(of(runs_of(optimizer), turn))
    assert found.keys() == expected.keys()
    slots = [name for name in expected if "_rows_" in name]
    assert len(slots) in (2, 4), "of both tables"
    for name, value in expected.items():
        if np.issubdtype(value.dtype, np.integer):
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        else:
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_the_runs_have_what_is_hard(runs_of: Callable[[str], Path]) -> None:
    """Keys that wait, keys without a place, rows that go to another key, and keys on several ranks in a step."""
    saved = [plain(runs_of("adagrad"), step) for step in ENDS]
    assert all(each["items/waiting"].sum() and each["items/overflow"].sum() for each in saved)
    for table in TABLES:
        evicted = [each[f"{table}/evicted"].sum() for each in saved]
        assert 0 < evicted[0] < evicted[1] < evicted[2]
        assert changed_owners(saved[0], saved[1], table) and changed_owners(saved[1], saved[2], table)
    data = load_passing_users(SEED)
    for feature in TABLES.values():
        assert any(on_several_ranks(data.train_batch(step * BATCH, BATCH)[feature], 3) for step in range(ENDS[0]))


def changed_owners(before: Values, after: Values, table: str) -> int:
    """Returns how many rows belong to one key before, and to another one after."""
    both = has_key(before, table) & has_key(after, table)
    places = both.shape[1]
    other = before[f"{table}/keys"][:, :places] != after[f"{table}/keys"][:, :places]
    return int(np.count_nonzero(both & other))


def on_several_ranks(keys: np.ndarray, ranks: int) -> set[int]:
    """Returns the keys of a step that the first two of the ranks have."""
    first, second, *_ = np.split(keys, ranks)
    return set(first.ravel().tolist()) & set(second.ravel().tolist())
