"""Errors of fit that the user's code does not catch, in a process without TensorFlow."""

from __future__ import annotations

import concurrent.futures
import gc
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from parallax_runner.errors import ConfigError, FitError
from parallax_runner.process.uncaught import show_if_uncaught

CALL = """
import sys, threading
from parallax_runner.errors import ConfigError, FitError
from parallax_runner.process.uncaught import show_if_uncaught


def fit(error, **given):
    error.called_at = "train.py:3 (fit(model))"
    show_if_uncaught(error, **given)
    raise error


"""
REFUSED = "parallax_runner: epochs=0\n    at train.py:3 (fit(model))\n"


def run(text: str, *options: str) -> subprocess.CompletedProcess[str]:
    code = CALL + text
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=60)


def test_a_refusal_has_one_message_and_its_status() -> None:
    ended = run("fit(ConfigError('epochs=0'))")
    assert (ended.returncode, ended.stderr) == (2, REFUSED)


def test_a_message_that_the_terminal_shows_is_not_repeated() -> None:
    ended = run("fit(FitError('SIGINT stopped the run', exit_status=130), is_shown=True)")
    assert (ended.returncode, ended.stderr) == (130, "parallax_runner: fit was called at train.py:3 (fit(model))\n")


def test_the_users_own_hook_is_called_too() -> None:
    hook = "sys.excepthook = lambda kind, error, trace: print(kind.__name__, trace.tb_frame.f_code.co_name)\n"
    ended = run(hook + "fit(ConfigError('epochs=0'))")
    assert (ended.returncode, ended.stderr, ended.stdout) == (2, REFUSED, "ConfigError <module>\n")


def test_an_error_that_was_caught_leaves_other_errors_alone() -> None:
    """Also if the program keeps the error, and if the other error is raised because of it."""
    for kept, cause in (("None", ""), ("error", ""), ("error", " from kept")):
        catch = f"try:\n    fit(ConfigError('epochs=0'))\nexcept ConfigError as error:\n    kept = {kept}\n"
        ended = run(f"{catch}raise ValueError('mine'){cause}")
        assert ended.returncode == 1 and ended.stderr.endswith("ValueError: mine\n")
        assert "parallax_runner: epochs=0" not in ended.stderr


def test_a_thread() -> None:
    """Its error ends no process. An error that a thread hands to the main thread does."""
    text = """
import concurrent.futures
thread = threading.Thread(target=fit, args=[ConfigError("epochs=0")])
thread.start()
thread.join()
print("goes on")
with concurrent.futures.ThreadPoolExecutor(1) as pool:
    pool.submit(fit, ConfigError("epochs=0")).result()
"""
    ended = run(text)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "goes on\n", REFUSED * 2)


def test_an_interactive_session_goes_on() -> None:
    code = CALL + "fit(ConfigError('epochs=0'))\nprint('goes on')\n"
    ended = subprocess.run([sys.executable, "-i", "-q"], input=code, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "goes on\n" and REFUSED in ended.stderr and "Traceback" not in ended.stderr


def raise_shown(error: BaseException) -> None:
    show_if_uncaught(error)  # type: ignore[arg-type]
    try:
        raise error
    finally:
        del error  # otherwise, this frame and the error would keep each other


def test_the_hooks_are_as_before_when_no_error_is_left() -> None:
    """The errors are freed in the order in which they were raised."""
    gc.collect()  # errors of other tests
    before = sys.excepthook, threading.excepthook
    kept: list[BaseException] = []
    for kind in (ConfigError, FitError):
        try:
            raise_shown(kind("caught"))
        except (ConfigError, FitError) as error:
            kept.append(error)
    for _ in range(2):
        assert sys.excepthook is not before[0] and threading.excepthook is not before[1]
        del kept[0]
    assert (sys.excepthook, threading.excepthook) == before


def test_a_hook_that_is_set_in_the_meantime_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    own = print
    with pytest.raises(ConfigError) as raised:
        raise_shown(ConfigError("first"))
    monkeypatch.setattr(sys, "excepthook", own)
    del raised
    assert sys.excepthook is own


def test_an_error_of_a_run_can_be_pickled() -> None:
    """As for a process that waits for a child."""
    error = FitError("failed", exit_status=3, status="failed", run_dir="runs/1", ckpt_path="runs/1/ckpt/model.ckpt-5")
    error.called_at = "train.py:3"
    found = pickle.loads(pickle.dumps(error))
    assert (str(found), vars(found)) == ("failed", vars(error))
    with concurrent.futures.ProcessPoolExecutor(1) as pool, pytest.raises(FitError, match="failed") as raised:
        pool.submit(raise_shown, error).result()
    assert raised.value.exit_status == 3


def test_a_notebook_shows_the_message_and_the_line() -> None:
    error = ConfigError("epochs=0")
    assert error._render_traceback_() == ["ConfigError: epochs=0"]
    error.called_at = "cell.py:3 (fit(model))"
    assert error._render_traceback_() == ["ConfigError: epochs=0", "    at cell.py:3 (fit(model))"]


def test_the_package_offers_the_error() -> None:
    program = "import parallax_runner, sys; print(parallax_runner.FitError.__mro__[1].__name__, 'keras' in sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).parents[3]
    )
    assert told.stdout == "ParallaxError False\n"
