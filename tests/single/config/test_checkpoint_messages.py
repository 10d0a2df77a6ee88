"""What a command line says about a checkpoint that it cannot use: one sentence, before Hydra runs a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.single.config.in_process import answer

READS = "reads a checkpoint; set ckpt.resume to a checkpoint, a folder of checkpoints or a run directory"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what looks like a run, and like a file of Keras."""
    (tmp_path / "runs" / "first" / "ckpt").mkdir(parents=True)
    (tmp_path / "model.keras").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("action", ["evaluate", "predict", "export"])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ckpt.resume=nowhere", "ckpt.resume=nowhere (command line): expected auto, never, or a path that exists."),
        ("ckpt.resume=never", f"ckpt.resume=never (command line): action={{action}} {READS}."),
        ("ckpt=off", "action={action} (command line): this action reads a checkpoint; omit ckpt=off, and set ckpt.res"),
    ],
)
def test_an_action_that_reads_a_checkpoint(action: str, line: str, said: str, folder: Path) -> None:
    expect(said.format(action=action), f"action={action}", *line.split(), cwd=folder)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "ckpt.resume=model.keras",
            "ckpt.resume=model.keras (command line): a file of Keras does not say where its training is; begin a new "
            "run with ckpt.warm_start instead.",
        ),
        (
            "ckpt.warm_start=model.keras ckpt.resume=runs/first",
            "ckpt.warm_start=model.keras (command line): the run already starts from ckpt.resume=runs/first; omit one "
            "of the two.",
        ),
        ("ckpt.warm_start=gone", "ckpt.warm_start=gone (command line): expected a path that exists."),
        ("ckpt.from=runs/first", "Did you mean ckpt.resume=runs/first?"),
    ],
)
def test_a_training(line: str, said: str, folder: Path) -> None:
    expect(said, *line.split(), cwd=folder)


def expect(said: str, *arguments: str, cwd: Path) -> None:
    """Checks that a command ends with one line that contains a sentence."""
    done = answer(*arguments, cwd=cwd)
    lines = done.stderr.strip().splitlines()
    assert (done.returncode, len(lines), done.stdout) == (2, 1, ""), done.stderr
    assert said in lines[0]
