"""What the README, the pages and the design notes name exists."""

import ast
import functools
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from parallax_runner.config.compose import register_schema
from parallax_runner.config.location import conf_dir
from parallax_runner.planning.plan_table import plan_table
from tests.single.planning.test_planner import DENSE
from tests.single.plans import plan_of
from tests.single.test_imports import STAGES, stage_of

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
CHANGELOG = ROOT / "CHANGELOG.md"
DEVELOPMENT = ROOT / "docs" / "development.md"
STAGE_NOTE = (ROOT / "docs" / "design" / "0002-stages-and-processes.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "parallax_runner"
NOTES = sorted((ROOT / "docs" / "design").glob("*.md"))
PAGES = sorted((ROOT / "docs").glob("*.md"))
PATH = re.compile(r"(?<![\w/.-])(?:parallax_runner|conf|deploy|models|scripts|tests|docs|benchmarks|\.ci)/[\w./-]*")
FILE = re.compile(r"`(?:[\w./-]*/)?([\w-]+\.(?:py|yaml|toml|c))`")
NOTE = re.compile(r"docs/design/[\w.-]+\.md")
LIST_ITEM = re.compile(r"( *)(?:[-*]|\d+\.) ")
OF_THE_EXAMPLE = {"models/bigram.py", "conf/model/bigram.yaml"}
# Files that a page tells its reader to write, or that belong to another project.
OF_OTHERS = {"bigram.py", "bigram.yaml", "jsonl.yaml", "jsonl_tracker.py", "mine.yaml", "sign.py", "sign.yaml"} | {
    *("csv_points.py", "points.yaml"),
    "job.yaml",  # written by a run on Kubernetes
    "setup.py",  # Horovod's, in design note 0001
    "models.py",  # a user's, in design note 0036
}


@functools.cache
def files() -> tuple[Path, ...]:
    """All files of the folders that pages speak of."""
    folders = ("benchmarks", "conf", "deploy", "docs", "models", "parallax_runner", "scripts", "tests")
    return tuple([*ROOT.glob("*"), *(path for name in folders for path in (ROOT / name).rglob("*"))])


def test_the_plan_that_pages_show_has_the_columns_of_a_plan() -> None:
    columns = len(plan_table(plan_of([DENSE])).columns)
    for page in (README, ROOT / "docs" / "index.md"):
        shown = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("│")]
        assert shown and {line.count("│") - 1 for line in shown} == {columns}, page.name


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def composed(*overrides: str) -> DictConfig:
    register_schema()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("config", list(overrides))


@pytest.mark.parametrize("document", [README, CHANGELOG, *NOTES, *PAGES], ids=lambda path: path.name)
def test_named_paths_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert set(FILE.findall(text)) - OF_OTHERS <= {path.name for path in files()}
    named = {path.rstrip(".") for path in PATH.findall(text)} - OF_THE_EXAMPLE
    linked = {link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    assert [link for link in sorted(linked) if not (document.parent / link.partition("#")[0]).exists()] == []


def test_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_pages_of_fit_are_short() -> None:
    """The first page is the one that a user of Keras reads before the first run."""
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert words["fit.md"] <= 1000
    assert {name: count for name, count in words.items() if name.startswith("fit-") and count > 1500} == {}


def anchors_in(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", [README, *NOTES, *PAGES], ids=lambda path: path.name)
def test_linked_sections_exist(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", document.read_text(encoding="utf-8"))
    pages = [(document if not path else document.parent / path, anchor) for path, anchor in links]
    assert [f"{page.name}#{anchor}" for page, anchor in pages if anchor not in anchors_in(page)] == []


def test_readme_leads_to_every_page() -> None:
    """To each directly, or by way of a page that it names."""
    reached, waiting = set(), [README]
    while waiting:
        page = waiting.pop()
        links = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        fresh = {(page.parent / link).resolve() for link in links} - reached
        reached |= fresh
        waiting += fresh
    assert [page.name for page in PAGES if page not in reached] == []


@pytest.mark.parametrize("document", [*NOTES, *PAGES], ids=lambda path: path.name)
def test_lists_and_tables_are_such_on_the_site_too(document: Path) -> None:
    """MkDocs' Markdown, unlike GitHub's, wants a blank line before a list or a table, and four spaces a level."""
    text = re.sub(r"^ *```.*?^ *```$", "```", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    unlike = []
    for paragraph in re.split(r"\n\s*\n", text):
        first, *others = [line for line in paragraph.strip("\n").splitlines() if not line.startswith("#")] or [""]
        if not LIST_ITEM.match(first) and not first.startswith("|"):
            unlike += [line for line in others if LIST_ITEM.match(line) or line.startswith("|")]
        unlike += [line for line in (first, *others) if (found := LIST_ITEM.match(line)) and len(found[1]) % 4]
    assert unlike == []


def test_every_design_note_is_listed() -> None:
    listed = (ROOT / "docs" / "design-notes.md").read_text(encoding="utf-8")
    named = dict(re.findall(r"^\| \[\d+\]\(design/([^)]+)\) \| (.+) \|$", listed, re.MULTILINE))
    titles = {note.name: note.read_text(encoding="utf-8").splitlines()[0].split(" ", 2)[2] for note in NOTES}
    assert named == titles


def test_named_design_notes_exist() -> None:
    sources = [ROOT / "pyproject.toml", *(ROOT / "parallax_runner").rglob("*.py")]
    named = {path for source in sources for path in NOTE.findall(source.read_text(encoding="utf-8"))}
    assert len(named) > 3
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_design_notes_are_numbered_without_gaps() -> None:
    assert NOTES
    assert [int(path.name[:4]) for path in NOTES] == list(range(1, len(NOTES) + 1))


def stages_in(files: Sequence[str]) -> list[int]:
    """The positions of the stages that the files belong to."""
    modules = [".".join(Path(file).with_suffix("").parts[1:]) for file in files]
    return [STAGES.index(stage_of(module)) for module in modules]


def test_the_reading_order_is_that_of_the_stages() -> None:
    """The first item leads through the processes; the others follow the stages."""
    _, _, order = DEVELOPMENT.read_text(encoding="utf-8").partition("## Reading the code")
    _, processes, *others = re.split(r"^\d+\. ", order.partition("\n## ")[0], flags=re.MULTILINE)
    first = [path for path in PATH.findall(processes) if path.endswith(".py")]
    assert first[0] == "parallax_runner/driver/pipeline.py"
    assert {Path(path).parts[1] for path in first} == {"driver", "worker"}
    named = [[path for path in PATH.findall(item) if path.startswith("parallax_runner/")] for item in others]
    assert len(named) > 8 and all(named)
    positions = stages_in([path for item in named for path in item])
    assert positions == sorted(positions)


def test_a_wrong_reading_order_is_seen() -> None:
    """Otherwise the test above could not fail."""
    positions = stages_in(["parallax_runner/rewrite/passes.py", "parallax_runner/plan/plan.py"])
    assert positions != sorted(positions)


def folders_of(stage: str) -> list[str]:
    """The folders below a stage's folder."""
    inner = sorted(path for path in (PACKAGE / stage).rglob("*") if path.is_dir() and path.name != "__pycache__")
    return [f"{path.relative_to(PACKAGE / stage).as_posix()}/" for path in inner]


def test_stages_of_the_design_note_are_the_folders_in_their_order() -> None:
    rows = [codes(cell) for cell in re.findall(r"^\| [^|]+ \| (`\w+/`[^|]*) \|", STAGE_NOTE, re.MULTILINE)]
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    named = [stage.removesuffix("/") for stage, *_ in rows]
    of_stages = [stage.split(".")[0] for stage in STAGES]
    assert named == [stage for stage in of_stages if stage in folders]
    assert set(named) == folders
    assert {stage: inner for stage, *inner in rows} == {f"{stage}/": folders_of(stage) for stage in named}
    assert sum(len(inner) for _, *inner in rows) > 20


def test_the_design_note_names_each_module_at_the_root() -> None:
    """Its other names of modules exist (`test_named_paths_exist`), and those of a stage are in the stage's folder."""
    at_root = {path.name for path in PACKAGE.glob("*.py")}
    (sentence,) = re.findall(r"^The root contains only public names: .+?\.$", STAGE_NOTE, re.MULTILINE | re.DOTALL)
    assert {code for code in codes(sentence) if code.endswith(".py")} == at_root
    rows = re.findall(r"^\| [^|]+ \| `(\w+)/`[^|]* \| [^|]+ \| ([^|]+) \|$", STAGE_NOTE, re.MULTILINE)
    named = [(stage, code) for stage, cell in rows for code in codes(cell) if code.endswith(".py")]
    assert len(named) > 5
    assert [(stage, name) for stage, name in named if not (PACKAGE / stage / name).is_file()] == []


def test_each_folder_of_the_package_says_what_it_is_for() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert len(folders) > 40
    for folder in folders:
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))), folder


COMING_FROM = ROOT / "docs" / "coming-from.md"


def test_every_row_of_coming_from_names_a_test_that_is_there() -> None:
    rows = [line for line in COMING_FROM.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| there |")]
    assert len(rows) > 30
    for row in rows:
        path, _, name = codes(row.split(" | ")[-1])[0].partition("::")
        assert (ROOT / path).is_file(), row
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8") if name else True, row


def test_every_setting_of_coming_from_is_one() -> None:
    cells = [
        row.split(" | ")[1] for row in COMING_FROM.read_text(encoding="utf-8").splitlines() if row.count(" | ") == 2
    ]
    given = [code for cell in cells for code in codes(cell) if re.match(r"[\w.]+=", code)]
    assert len(given) > 25
    for overrides in given:
        needed = ["profile=steps"] if overrides.startswith(("profile.dir", "profile.worker")) else []
        composed(*needed, *overrides.replace("hosts.txt", "[localhost]").split(" ", overrides.count("=") - 1))
