"""Ranking, the closing table, `results.json` and the plot."""

import json
import math
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from parallax_runner.sweep import objectives_plot
from parallax_runner.sweep.groups import grouped
from parallax_runner.sweep.ledger import Account, Job, Standing, Status
from parallax_runner.sweep.results import Result, disagreement, heading_of_objective, rank, save, table

MORE = {"words_per_sec": 12345.6, "step_ms_p50": 1.25, "steps": 5}


def job(sweep_dir: Path, name: str) -> Job:
    return Job(name, name.replace("-", "="), (f"x={name}",), str(sweep_dir / name))


def ranked(sweep_dir: Path) -> list[Result]:
    """Five jobs: two finished, one of them with NaN as its loss, one failed, one not run."""
    outcomes: dict[str, tuple[Status, float | None]] = {
        "a-1": ("finished", 3.0),
        "a-2": ("finished", 1.0),
        "a-3": ("finished", math.nan),
        "a-4": ("failed", None),
    }
    standings = {}
    for name, (status, objective) in outcomes.items():
        folder = sweep_dir / name
        folder.mkdir(parents=True, exist_ok=True)
        summary = {"loss_last": objective, "validation_perplexity": objective, "error": "it broke", **MORE}
        (folder / "summary.json").write_text(json.dumps(summary | {"loss_last": None}).replace("NaN", "null"))
        standings[name] = Standing(
            job(sweep_dir, name), status, 1, objective, int(status == "failed"), objective_name="perplexity"
        )
    planned = [job(sweep_dir, f"a-{number}") for number in (1, 2, 3, 4, 5)]
    return rank(Account(standings), planned)


def test_best_first_and_those_without_objective_last(tmp_path: Path) -> None:
    results = ranked(tmp_path)
    assert [(one.rank, one.job, one.status) for one in results] == [
        (1, "a=2", "finished"),
        (2, "a=1", "finished"),
        (None, "a=3", "finished"),
        (None, "a=4", "failed"),
        (None, "a=5", "not run"),
    ]
    assert [one.error for one in results] == [None, None, None, "it broke", None]


def test_the_largest_is_the_first_where_that_is_better(tmp_path: Path) -> None:
    standings = {
        name: Standing(job(tmp_path, name), "finished", 1, value, objective_name="auc", direction="maximize")
        for name, value in {"a-1": 0.6, "a-2": 0.9, "a-3": 0.7}.items()
    }
    results = rank(Account(standings), [])
    assert [one.job for one in results] == ["a=2", "a=3", "a=1"]
    document = json.loads(save(results, tmp_path, "finished").read_text())
    assert (document["objective"], document["direction"]) == ("auc", "maximize")
    assert heading_of_objective(results) == "auc (maximize)"


def test_objectives_of_two_kinds_are_not_ranked(tmp_path: Path) -> None:
    names = {"a-1": "perplexity", "a-2": "training loss", "a-3": "training loss"}
    standings = {
        name: Standing(job(tmp_path, name), "finished", 1, 4.0, objective_name=objective)
        for name, objective in names.items()
    }
    results = rank(Account(standings), [])
    assert [one.rank for one in results] == [None] * 3
    assert "perplexity (1 job), training loss (2 jobs)" in str(disagreement(results))
    document = json.loads(save(results, tmp_path, "finished").read_text())
    assert (document["objective"], document["direction"]) == (None, None)
    del standings["a-1"]
    results = rank(Account(standings), [])
    assert [one.rank for one in results] == [1, 2] and disagreement(results) is None


def test_titles_are_no_markup(tmp_path: Path) -> None:
    titles = ("x=[relu]", "x=[/d/a.txt]", "[b]")
    standings = {
        title: Standing(
            Job(title, title, (), str(tmp_path / "[red]" / title)), "finished", 1, 1.0, objective_name="validation loss"
        )
        for title in titles
    }
    console = Console(width=140, record=True, file=(tmp_path / "out").open("w"))
    console.print(table(rank(Account(standings), []), tmp_path / "[red]"))
    shown = console.export_text()
    assert all(title in shown and f"./{title}" in shown for title in titles) and "[red]" in shown.replace("\n", "")


def test_table(tmp_path: Path) -> None:
    console = Console(width=140, record=True, file=(tmp_path / "out").open("w"))
    console.print(table(ranked(tmp_path), tmp_path))
    shown = console.export_text(clear=False)
    assert "perplexity" in shown and "(minimize)" in shown
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in console.export_text().splitlines() if "│" in line
    ]
    assert rows[0] == ["1", "a=2", "finished", "1", "12,346", "1.2", "./a-2"]
    assert rows[3] == ["", "a=4", "failed", "", "12,346", "1.2", "./a-4"]
    assert rows[4] == ["", "a=5", "not run", "", "", "", "./a-5"]


def test_speed_is_in_words_only_where_all_jobs_know_them(tmp_path: Path) -> None:
    def speeds(**summaries: dict[str, float | None]) -> list[str]:
        for name, summary in summaries.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "summary.json").write_text(json.dumps(summary))
        standings = {name: Standing(job(tmp_path, name), "finished", 1, 1.0) for name in summaries}
        console = Console(width=140, record=True, file=(tmp_path / "out").open("w"))
        console.print(table(rank(Account(standings), []), tmp_path))
        lines = console.export_text().splitlines()
        heads = [cell.strip() for line in lines for cell in line.split("┃") if "/s" in cell]
        return heads + [line.split("│")[5].strip() for line in lines if "│" in line]

    with_words = {"words_per_sec": 3000.0, "examples_per_sec": 150.0}
    without = {"words_per_sec": None, "examples_per_sec": 1234.0}
    assert speeds(a=with_words) == ["words/s", "3,000"]
    assert speeds(a=without) == ["examples/s", "1,234"]
    assert speeds(a=with_words, b=without) == ["examples/s", "150", "1,234"]


def test_results_are_strict_json(tmp_path: Path) -> None:
    path = save(ranked(tmp_path), tmp_path, "failed")
    document = json.loads(path.read_text(), parse_constant=lambda name: pytest_fail(name))
    assert (document["status"], document["objective"], document["direction"]) == ("failed", "perplexity", "minimize")
    assert [one["objective"] for one in document["jobs"]] == [1.0, 3.0, None, None, None]
    assert document["jobs"][0]["overrides"] == ["x=a-2"]


def pytest_fail(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_plot_of_any_outcome(tmp_path: Path) -> None:
    results = ranked(tmp_path)
    for some in (results, results[:2], results[2:], [], results * 20):
        assert objectives_plot.save(some, tmp_path).read_bytes().startswith(b"\x89PNG")


def results_of(*overrides: tuple[str, ...]) -> list[Result]:
    """Finished jobs with these overrides, in the order of their ranks."""
    more = {"words_per_sec": None, "step_ms_p50": None, "steps": 5, "tracker_run_id": None, "error": None}
    return [
        Result(rank, ",".join(one), "finished", 98.0 + rank, run_dir="", overrides=one, objective_name="x", **more)
        for rank, one in enumerate(overrides, start=1)
    ]


FIXED, SEEDS = "model=lm", ("train.seed=1", "train.seed=2")


def test_jobs_are_grouped_by_what_was_swept() -> None:
    def names(*overrides: tuple[str, ...]) -> list[tuple[str, list[int | None]]]:
        return [(one.name, [job.rank for job in one.results]) for one in grouped(results_of(*overrides))]

    modes = [(FIXED, f"comm={comm}", seed) for comm, seed in zip(("ps", "mpi", "ps", "mpi"), SEEDS * 2, strict=True)]
    assert names(*modes) == [("comm=ps", [1, 3]), ("comm=mpi", [2, 4])]
    assert names((FIXED, "a=1", "b=1"), (FIXED, "a=2", "b=1"), (FIXED, "a=1", "b=2")) == [("a=1", [1, 3]), ("a=2", [2])]
    assert names((FIXED, "a=1"), (FIXED, "a=2")) == [("", [1, 2])], "one key"
    assert names(*((FIXED, seed) for seed in SEEDS)) == [("", [1, 2])]
    assert names((FIXED,)) == [("", [1])]


def test_plot_has_the_value_of_each_job_and_the_mean_of_each_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Axes] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure.axes[0]))
    objectives_plot.save(results_of(*((f"comm={comm}", seed) for comm in ("ps", "mpi") for seed in SEEDS)), tmp_path)
    (axes,) = drawn
    assert [text.get_text() for text in axes.texts] == ["99", "100", "101", "102"]
    assert axes.get_yticklabels()[0].get_text() == "comm=ps,train.seed=1"
    means = [line.get_xdata()[0] for line in axes.get_lines() if list(line.get_xdata())[1:2] == [line.get_xdata()[0]]]
    assert means == [99.5, 101.5]
    low, high = axes.get_xlim()
    assert high - low > 10, "a few percent do not fill the axis"
