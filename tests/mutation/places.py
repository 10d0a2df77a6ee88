"""Where the tool keeps what it records: in a folder of the checkout that git ignores."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".mutation"
RECORD = FOLDER / "record"
RAW = FOLDER / "raw"
COPY = FOLDER / "tree"
RESULTS = FOLDER / "results.jsonl"
FAULTS = Path(__file__).with_name("faults.toml")
