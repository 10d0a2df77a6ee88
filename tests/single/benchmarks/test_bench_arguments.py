"""The command line of scripts/bench, the machine's description, and the loop's figures."""

import re
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.__main__ import parse
from benchmarks.loop import LoopCost, rows_of_loop


def test_overrides_and_options_in_any_order() -> None:
    asked = parse(["data.batch_size=32", "--repeats", "3", "model=simple", "--modes", "mpi"])
    assert (asked.kind, asked.repeats, asked.steps, asked.modes) == ("modes", 3, 150, "mpi")
    assert asked.overrides == ["data.batch_size=32", "model=simple"]


def test_kinds() -> None:
    assert parse(["loop", "--steps", "20"]).steps == 20
    assert parse(["startup"]).modes == "hybrid,mpi"
    assert parse(["plan"]).tables == [26, 52, 100, 300]
    assert (parse(["read"]).megabytes, parse(["read"]).peer_rows) == (300, 400_000)
    assert (parse(["data"]).megabytes, parse(["data", "--megabytes", "20"]).megabytes) == (300, 20)
    assert parse(["plan", "--tables", "5", "9", "--models", "step"]).models == ["step"]


@pytest.mark.parametrize(
    "wrong", [["--repeats", "0"], ["--repeats", "many"], ["startup", "--steps", "9"], ["plan", "--models", "lm"]]
)
def test_what_makes_no_sense(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(wrong)
    assert refused.value.code == 2


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        parse(["--out", str(tmp_path)])


def test_a_busy_machine_is_told_of() -> None:
    assert machine.idle_warning({"load_average": 3.0, "busy_share": 0.01}) is None
    told = machine.idle_warning({"load_average": 0.5, "busy_share": 0.5})
    assert told is not None and "50%" in told and "not idle" in told


def test_the_machine_in_one_line() -> None:
    about = machine.describe()
    assert about["cores"] >= 1 and about["cpu"]
    assert str(about["versions"]["horovod"]) in machine.sentence(about)


def test_cost_of_the_loop_is_the_median_of_pairs() -> None:
    cost = LoopCost("tiny", 50, bare_us=(100.0, 200.0, 100.0), loop_us=(102.0, 203.0, 150.0))
    assert cost.cost_us == pytest.approx(3.0)
    assert cost.cost_share == pytest.approx(0.03)
    assert rows_of_loop([cost]).body[0][-2] == "3.00%"


@pytest.mark.parametrize("kind", ["modes", "loop", "startup", "data", "read", "--hosts"])
def test_documented_commands_are_the_defaults(kind: str) -> None:
    """docs/benchmarks.md shows each command with what it does when nothing is said."""
    text = (machine.ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    shown = {command for command in re.findall(r"^\*\*`scripts/bench (.+)`\*\*", text, re.MULTILINE)}
    [arguments] = [one for one in shown if one.startswith(kind if kind != "modes" else "[")]
    words = (
        arguments.replace("--hosts N", "--hosts 2").replace("[overrides]", "").replace("[", "").replace("]", "").split()
    )
    said_nothing = {"modes": [], "--hosts": ["--hosts", "2"]}
    assert parse(words) == parse(said_nothing.get(kind, [kind]))
