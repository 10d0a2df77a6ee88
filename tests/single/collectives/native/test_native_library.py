"""When the library of the native exchanges can be made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner.collectives.native import library as made
from parallax_runner.collectives.native.compilation import (
    COMPILERS,
    FLAGS,
    SOURCES,
    find_compiler,
    packaged_name,
    tensorflow_folder,
    tensorflow_version,
)
from parallax_runner.errors import CollectiveError

COMPILES = """
import sys
from parallax_runner.collectives.native.library import library
from parallax_runner.errors import CollectiveError
from parallax_runner.process.exit_status import tell
try:
    library()
except CollectiveError as error:
    sys.exit(tell(error))
"""


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def with_programs(folder: Path, *names: str) -> str:
    """A PATH on which there are only these programs."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_the_compiler_that_the_user_names_comes_first(tmp_path: Path) -> None:
    path = with_programs(tmp_path / "bin", "g++", "ccache")
    assert find_compiler({"PATH": path}) == ["g++"]
    assert find_compiler({"PATH": path, "CXX": "ccache g++"}) == ["ccache", "g++"]
    assert find_compiler({"PATH": path, "CXX": "missing"}) == ["g++"]


@pytest.fixture
def no_compiler(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler, and nothing that was compiled before."""
    monkeypatch.setenv("PATH", with_programs(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_remedy_is_told() -> None:
    remedies = r"need a C\+\+ compiler.*; install a.*apt-get install g\+\+.*, or use comm.backend=horovod"
    with pytest.raises(CollectiveError, match=remedies):
        made.library()


@pytest.mark.usefixtures("no_compiler")
def test_a_library_in_the_cache_needs_no_compiler() -> None:
    kept = made._place()
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert made.lack() is None
    assert made.library() == kept


@pytest.mark.usefixtures("no_compiler")
def test_the_library_of_a_wheel_works_with_one_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "PACKAGED", tmp_path)
    other = tmp_path / packaged_name("2.20.0")
    other.touch()
    lack = made.lack()
    assert lack is not None and lack.remedy.startswith("install tensorflow-cpu==2.20.0, or install a C++ compiler")
    assert f"work with TensorFlow 2.20.0, but TensorFlow {tensorflow_version()} is installed" in lack.reason
    own = tmp_path / packaged_name(tensorflow_version())
    own.touch()
    assert made.lack() is None
    assert made.library() == own


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the place of the cache's folder is as good for this as a folder of somebody else."""
    place = tmp_path / "file"
    place.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    lack = made.lack()
    assert lack is not None and lack.remedy == "set XDG_CACHE_HOME to a folder that you can write"
    assert lack.reason.endswith(f"but {place} cannot be written")
    with pytest.raises(CollectiveError, match=r"set XDG_CACHE_HOME.*, or use comm.backend=horovod"):
        made.library()


def test_what_the_compiler_says_is_told_and_nothing_stays(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = tmp_path / "fails"
    fails.write_text("#!/bin/sh\necho 'engine.cc:1: error: out of luck' >&2\nexit 1\n")
    fails.chmod(0o755)
    monkeypatch.setenv("CXX", str(fails))
    with pytest.raises(CollectiveError, match=r"out of luck; use comm.backend=horovod"):
        made.library()
    assert not list(empty_cache.rglob("*.so"))


def test_a_limit_that_ends_the_compiler_is_named(empty_cache: Path) -> None:
    command = f"ulimit -f 16; exec {sys.executable} -c '{COMPILES}'"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "cannot be compiled: " in done.stderr
    assert "size of a file: at most 16 KiB (ulimit -f); raise this limit; use comm.backend=horovod" in done.stderr
    assert not list(empty_cache.rglob("*.so"))


def test_other_sources_are_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = made._place()
    (tmp_path / "engine.cc").write_text("// other")
    monkeypatch.setattr(made, "SOURCES", tmp_path)
    assert made._place() != before


def test_sums_compile_without_warnings(tmp_path: Path) -> None:
    """The smallest source; all of them take ten seconds (tests/parallel/test_native_exchanges.py compiles them)."""
    (command, *_) = (name for name in COMPILERS if subprocess.run(["which", name], capture_output=True).returncode == 0)
    include = ["-isystem", str(tensorflow_folder() / "include")]
    warnings = ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]
    source = [*include, str(SOURCES / "sums.cc"), "-fsyntax-only"]
    done = subprocess.run([command, *FLAGS, *warnings, *source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
