"""The list of faults fits the package, and a fault changes one place."""

import pytest

from tests.mutation.faults import Fault, load_faults
from tests.mutation.places import FAULTS, ROOT

LISTED = load_faults(FAULTS)
PACKAGES = (
    "graph",
    "analysis",
    "planning",
    "rewrite",
    "launch",
    "checkpoints",
    "train",
    "track",
    "sweep",
    "export",
    "api",
)


@pytest.mark.parametrize("fault", LISTED, ids=lambda fault: fault.name)
def test_every_listed_fault_can_be_applied(fault):
    source = (ROOT / fault.file).read_text(encoding="utf-8")
    assert fault.applied_to(source) != source


def test_the_faults_are_spread_over_the_packages():
    assert len(LISTED) >= 66
    for package in PACKAGES:
        assert sum(fault.file.startswith(f"parallax_runner/{package}/") for fault in LISTED) >= 4, package


def test_a_fault_knows_its_lines():
    fault = Fault("f", "m.py", "b\nc\n", "d\n", "")
    assert list(fault.lines_in("a\nb\nc\n")) == [2, 3]
    assert fault.applied_to("a\nb\nc\n") == "a\nd\n"


@pytest.mark.parametrize("source", ["a\n", "b\nb\n"])
def test_a_fault_whose_place_is_not_clear_is_refused(source):
    with pytest.raises(ValueError, match="not once"):
        Fault("f", "m.py", "b", "c", "").applied_to(source)


def test_two_faults_of_one_name_are_refused(tmp_path):
    entry = '[[fault]]\nname = "f"\nfile = "m.py"\nold = "a"\nnew = "b"\nbreaks = ""\n'
    path = tmp_path / "faults.toml"
    path.write_text(2 * entry)
    with pytest.raises(ValueError, match="the name f"):
        load_faults(path)
