import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.launch.watch import whereabouts
from parallax_runner.launch.watch.whereabouts import (
    SESSION_RUN,
    Place,
    Whereabouts,
    describe,
    main_thread_place,
    ranges,
)


def at(role: str, index: int, doing: Activity, where: Place | None) -> Whereabouts:
    return Whereabouts(role, index, "h", doing, 1.0, where, 40)


def wait_for_release(release: threading.Event) -> None:
    release.wait(60.0)


def test_the_place_is_the_innermost_line_of_the_package_and_what_it_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whereabouts, "PACKAGE", Path(__file__).parent)
    release, places = threading.Event(), []

    def look() -> None:
        deadline = time.monotonic() + 50
        while not (place := main_thread_place()).call.startswith("threading.wait") and time.monotonic() < deadline:
            time.sleep(0.01)
        places.append(place)
        release.set()

    thread = threading.Thread(target=look)
    thread.start()
    wait_for_release(release)
    thread.join()
    line = wait_for_release.__code__.co_firstlineno + 1
    assert places == [Place("threading.wait", f"test_whereabouts.py:{line} wait_for_release")]


def test_of_a_script_the_place_is_its_own_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from parallax_runner.launch.watch import whereabouts\n\n\ndef look():\n"
        "    print(whereabouts.main_thread_place())\n"
        "\n\nimport threading\nwhereabouts.PACKAGE = whereabouts.Path(__file__).parent / 'runs'\n"
        "thread = threading.Thread(target=look)\nthread.start()\nthread.join()\n"
    )
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "it.py").write_text("import runpy, sys\n\nrunpy.run_path(sys.argv[1], run_name='__main__')\n")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "runs" / "it.py"), str(tmp_path / "train.py")], capture_output=True, text=True
    )
    # The thread looks while the script starts it, or waits for it.
    assert done.stdout in ("train.py:11\n", "train.py:12\n"), done.stderr


def test_equal_places_make_one_line() -> None:
    step = Place(SESSION_RUN, "train/loop.py:73 _step")
    others = [at("worker", index, Activity(Kind.STEP, 41), step) for index in (0, 2, 3, 4)]
    others += [
        at("worker", 1, Activity(Kind.SAVING, 42), Place("checkpoint.save")),
        at("server", 0, Activity(Kind.SERVING), None),
    ]
    assert describe(others) == [
        "workers 0, 2–4 waited in step 41 (session.run)",
        "worker 1 was saving step 42 (checkpoint.save)",
        "server 0 was serving (no answer)",
    ]


def test_ranges() -> None:
    assert ranges([3, 0, 1, 2, 5, 8, 9]) == "0–3, 5, 8–9"
