"""What a person sees of a sweep in `mlflow ui`: a real browser on a real server, and numbers of `summary.json`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from mlflow.entities import Run as MlflowRun
from playwright.sync_api import Locator, Page, expect

from parallax_runner import __version__
from tests.e2e import screenshots
from tests.e2e.conftest import PATIENCE_MS
from tests.e2e.recorded_sweep import EXPERIMENT, Job, RecordedSweep, command

JOBS = ["comm=hybrid,train.seed=1", "comm=hybrid,train.seed=2", "comm=mpi,train.seed=1", "comm=mpi,train.seed=2"]
SHOWN_COLUMNS = ("validation/perplexity", "throughput/words_per_sec", "comm.name", "train.seed")
HIDDEN_COLUMNS = ("Dataset", "Source", "Models")
CHART = "[data-testid=experiment-view-compare-runs-card]"
# Name and last value of each line that Plotly has drawn in a chart.
LAST_VALUES = "(card) => card.querySelector('.js-plotly-plot').data.map((line) => [line.name, line.y.at(-1)])"

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def open_run(page: Page, address: str, sweep: RecordedSweep) -> Callable[..., Page]:
    """Opens a run's page, at one of its tabs."""

    def opened(run: MlflowRun, tab: str | None = None) -> Page:
        page.goto(f"{address}/#/experiments/{sweep.experiment_id}/runs/{run.info.run_id}")
        expect(page.get_by_test_id("runs-header")).to_contain_text(str(run.info.run_name))
        if tab is not None:
            page.get_by_role("tab", name=tab, exact=True).click()
        return page

    return opened


@pytest.fixture
def job(sweep: RecordedSweep) -> Job:
    """The one that is looked at closely."""
    return sweep.jobs[0]


def test_the_sweep_is_one_line_and_opens_to_its_jobs(page: Page, address: str, sweep: RecordedSweep) -> None:
    page.goto(address)
    page.get_by_role("link", name=EXPERIMENT, exact=True).first.click()
    parent = line(page, str(sweep.parent.info.run_name))
    expect(parent).to_be_visible()
    expect(page.get_by_text("5 matching runs")).to_be_visible()
    assert [job.name for job in sweep.jobs] == JOBS
    for name in JOBS:
        expect(line(page, name)).to_have_count(0)
    parent.get_by_role("button").click()
    for name in JOBS:
        expect(line(page, name)).to_be_visible()
    choose_columns(page)
    for job in sweep.jobs:
        number = line(page, job.name).get_attribute("row-index")
        cells = page.locator(f".ag-row[row-index='{number}']")
        told = {column: cells.locator(f"[col-id*='`{column}`']").inner_text() for column in SHOWN_COLUMNS}
        assert float(told["validation/perplexity"]) == job.summary["validation_perplexity"]
        assert float(told["throughput/words_per_sec"]) == job.run.data.metrics["throughput/words_per_sec"]
        assert f"comm={told['comm.name']},train.seed={told['train.seed']}" == job.name
    screenshots.take(page, "list")


def line(page: Page, name: str) -> Locator:
    """A run's line in the list."""
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def choose_columns(page: Page) -> None:
    page.get_by_role("button", name="Columns", exact=True).click()
    for column in (*HIDDEN_COLUMNS, *SHOWN_COLUMNS):
        page.get_by_test_id("column-selector-tree").get_by_text(column, exact=True).click()
    page.keyboard.press("Escape")


def test_a_job_shows_where_it_comes_from(open_run: Callable[..., Page], sweep: RecordedSweep, job: Job) -> None:
    page = open_run(job.run)
    expect(page.get_by_test_id("key-value-Status")).to_contain_text("Finished")
    expect(page.get_by_test_id("key-value-Source")).to_contain_text(sweep.commit[:7])
    expect(page.get_by_test_id("key-value-Source")).to_contain_text(command(" -m comm="))
    tags = {"comm": "hybrid", "model": "lm", "workers": "2", "servers": "1", "parallax.version": __version__}
    for name, value in tags.items():
        expect(page.get_by_text(f"{name}: {value}", exact=True)).to_be_visible()
    page.get_by_test_id("key-value-Parent run").get_by_role("link").click()
    expect(page.get_by_test_id("runs-header")).to_contain_text(str(sweep.parent.info.run_name))


def test_a_job_shows_its_metrics_and_parameters(open_run: Callable[..., Page], job: Job) -> None:
    page = open_run(job.run)
    metrics = {
        "train/loss": job.summary["loss_last"],
        "validation/loss": job.summary["validation_loss"],
        "validation/perplexity": job.summary["validation_perplexity"],
        "time/run_step_ms_p50": job.summary["step_ms_p50"],
    }
    for name, value in metrics.items():
        assert float(cells(page, name)[1]) == value, name
    assert float(cells(page, "throughput/words_per_sec")[1]) > 0
    params = {"comm.name": "hybrid", "train.seed": "1", "train.steps": "60", "data.vocab_size": "2000"}
    for name, value in params.items():
        assert cells(page, name) == [name, value]
    screenshots.take(page, "job", height=1400)


def cells(page: Page, name: str) -> list[str]:
    """A line of the tables of metrics and parameters: the name and the value."""
    row = page.get_by_role("row").filter(has=page.get_by_role("cell", name=name, exact=True))
    expect(row).to_have_count(1)
    return row.get_by_role("cell").all_inner_texts()


def test_a_job_draws_its_metrics(open_run: Callable[..., Page], job: Job) -> None:
    page = open_run(job.run, "Model metrics")
    last = job.run.data.metrics
    for name in ("train/loss", "validation/loss", "validation/perplexity", "throughput/words_per_sec"):
        assert drawn(page, name) == {job.name: last[name]}, name
    assert last["train/loss"] == job.summary["loss_last"]
    search(page, "train/loss|perplexity|words_per_sec")
    screenshots.take(page, "metrics", height=1430)
    page.get_by_role("tab", name="System metrics", exact=True).click()
    name = "system/run_memory_megabytes"
    assert drawn(page, name) == {job.name: last[name]}


def drawn(page: Page, metric: str) -> dict[str, Any]:
    """The last value of each run's line in the chart of a metric, by the run's name."""
    search(page, metric)  # charts further down are drawn only when one scrolls there
    chart = page.locator(CHART).filter(has_text=f"({metric})")
    expect(chart.locator(".js-plotly-plot .scatterlayer path.js-line").first).to_be_attached()
    return dict(chart.evaluate(LAST_VALUES))


def search(page: Page, pattern: str) -> None:
    """Has the page show only the charts whose metric matches."""
    page.get_by_placeholder("Search metric charts").fill(pattern)


def test_a_job_keeps_its_files_and_its_loss_as_an_image(open_run: Callable[..., Page], job: Job) -> None:
    page = open_run(job.run, "Artifacts")
    file(page, "config.yaml").click()
    expect(page.get_by_text("average_sparse: true")).to_be_visible()
    file(page, "plan.json").click()
    expect(page.get_by_text("softmax_w").first).to_be_visible()
    file(page, "model").click()
    expect(page.get_by_role("button", name="Register model")).to_be_visible()
    file(page, "MLmodel").click()
    expect(page.get_by_text("loader_module: mlflow.").first).to_be_visible()
    file(page, "plots").click()
    expect_image(page, "throughput.png", job.run_dir / "plots" / "throughput.png")
    expect_image(page, "loss.png", job.run_dir / "plots" / "loss.png")
    screenshots.take(page, "loss")


def test_the_sweep_keeps_its_ranking_as_an_image(open_run: Callable[..., Page], sweep: RecordedSweep) -> None:
    page = open_run(sweep.parent)
    best = min(job.summary["validation_perplexity"] for job in sweep.jobs)
    assert float(cells(page, "sweep/best_objective")[1]) == best
    assert cells(page, "comm.name") == ["comm.name", '["mpi", "hybrid"]']
    page.get_by_role("tab", name="Artifacts", exact=True).click()
    expect_image(page, "sweep.png", sweep.dir / "sweep.png")
    screenshots.take(page, "sweep")


def file(page: Page, name: str) -> Locator:
    """A file or folder in the tree of artifacts."""
    return page.get_by_test_id("artifact-tree-node").filter(has=page.get_by_text(name, exact=True))


def expect_image(page: Page, name: str, path: Path) -> None:
    """The browser has loaded and decoded the very image."""
    file(page, name).click()
    image = page.get_by_role("img", name=name)
    expect(image).to_be_visible()
    page.wait_for_function("(image) => image.complete && image.naturalWidth > 0", arg=image.element_handle())
    size = image.evaluate("(image) => [image.naturalHeight, image.naturalWidth]")
    assert tuple(size) == imread(path).shape[:2]


def test_jobs_are_compared_in_one_chart(page: Page, address: str, sweep: RecordedSweep) -> None:
    page.goto(f"{address}/#/experiments/{sweep.experiment_id}/runs?compareRunsMode=CHART")
    parent = line(page, str(sweep.parent.info.run_name))
    parent.get_by_role("button").click()
    expect(line(page, JOBS[-1])).to_be_visible()
    for metric, key in (("train/loss", "loss_last"), ("validation/perplexity", "validation_perplexity")):
        assert drawn(page, metric) == {job.name: job.summary[key] for job in sweep.jobs}
    by_name = {job.name: job.summary["loss_last"] for job in sweep.jobs}
    for seed in (1, 2):  # as docs/browsing.md says
        assert by_name[f"comm=mpi,train.seed={seed}"] == pytest.approx(
            by_name[f"comm=hybrid,train.seed={seed}"], rel=0.01
        )
    search(page, "train/loss|validation/perplexity")
    screenshots.take(page, "comparison", height=1100)
