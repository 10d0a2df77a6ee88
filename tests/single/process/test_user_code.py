"""User code that calls sys.exit, or raises what is no error: one message that names the module and the line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import CaptureError, ConfigError, DataError, Interrupted
from parallax_runner.graph import build
from parallax_runner.graph.capture import capture
from parallax_runner.process.user_code import closed, must_not_exit, place_of

MODULE = """import sys

if {at_import}:
    sys.exit({status!r})


class Stop(BaseException):
    pass


def load(**sizes):
    raise Stop("no data today")


def model(features, optimizer):
    sys.exit({status!r})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Comes first in the search for modules, as the working directory does."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def write(path: Path, *, at_import: bool = False, status: object = 0) -> None:
    path.write_text(MODULE.format(at_import=at_import, status=status))


def config(folder: Path, module: str) -> RunConfig:
    return from_plain(
        {
            "run_dir": str(folder),
            "train": {"seed": 1},
            "data": {"_target_": f"{module}.load", "batch_size": 2},
            "model": {"_target_": f"{module}.model"},
            "optimizer": {"_target_": f"{module}.optimizer"},
        }
    )


@pytest.mark.parametrize("status", [0, 3, "no license", None])
def test_a_module_that_exits_while_it_is_imported(status: object, folder: Path) -> None:
    name = f"exits_{type(status).__name__}_{status and 'one'}"
    write(folder / f"{name}.py", at_import=True, status=status)
    with pytest.raises(ConfigError) as raised:
        build.load_dataset(config(folder, name))
    said = str(raised.value)
    assert said.startswith(f"data._target_={name}.load: cannot be imported: it ends the process at ")
    assert f"{folder / name}.py:4 (sys.exit({status!r})): SystemExit" in said


def test_data_that_end_the_process(folder: Path) -> None:
    write(folder / "exits_in_data.py")
    with pytest.raises(DataError, match=r"exits_in_data\.py:12 .*: Stop: no data today"):
        build.load_dataset(config(folder, "exits_in_data"))


def test_models_of_the_working_directory_that_exit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hide the project's, so what is looked for there is not to be had; it is told and not swallowed."""
    write(folder / "models.py", at_import=True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "models"]:
        monkeypatch.delitem(sys.modules, name)
    build._reach_models()
    with pytest.raises(ConfigError, match=r"model\._target_=models\.model: cannot be imported: .*models\.py:4"):
        build._find("model", config(folder, "models").model)


def test_a_model_that_exits() -> None:
    with pytest.raises(
        CaptureError, match=r"the model's function: it ends .*test_user_code\.py:\d+ \(.*\): SystemExit: 7"
    ):
        capture(lambda features: sys.exit(7), {"x": ((2,), "float32")}, seed=1)


@pytest.mark.parametrize("signal", [Interrupted, KeyboardInterrupt])
def test_a_signal_passes(signal: type[BaseException]) -> None:
    """The driver makes one of these of a signal, a worker the other: no fault of the user's code."""

    def model(features: object) -> None:
        raise signal

    with pytest.raises(signal), must_not_exit("a model", ConfigError):
        raise signal
    with pytest.raises(signal):
        capture(model, {"x": ((2,), "float32")}, seed=1)  # type: ignore[arg-type]


def test_the_first_line_of_a_statement_is_closed() -> None:
    assert closed("x = f(1)") == "x = f(1)"
    assert closed("x = f(") == "x = f(…)"
    assert closed("x = f([1, {2: 3,") == "x = f([1, {2: 3,…}])"
    assert closed("a)") == "a)"


def test_the_projects_own_lines_are_not_to_blame() -> None:
    with pytest.raises(ValueError, match="parallax") as caught:
        build._unwrapped(lambda: int("parallax"))
    assert place_of(caught.value).startswith(f"{__file__}:")
    with pytest.raises(ConfigError) as refused:
        from_plain_refused()
    assert place_of(refused.value).startswith(f"{__file__}:")


def from_plain_refused() -> None:
    build._find("model", {"_target_": "os.path"})
