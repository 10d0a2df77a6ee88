"""The memory of `action=predict` does not depend on the number of rows."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet

from tests.integration.runs import Running, launch

FEW, MANY, NUMBERS = 150_000, 1_500_000, 16
FLOAT_BYTES = 4
COLUMNS = ", ".join(f"x{number}: number" for number in range(NUMBERS))
LINES = (
    *("model=tabular", "data.train=few.parquet", "data.batch_size=4096", "comm=local", "tracking=off"),
    *(f"data.columns={{id: id, {COLUMNS}, y: label}}", "train.steps=2", "data.cache_dir=cache"),
)


def write(path: Path, rows: int) -> None:
    draw = np.random.default_rng(1)
    columns = {f"x{number}": draw.random(rows, np.float32) for number in range(NUMBERS)}
    label = draw.integers(0, 2, rows)
    pa.parquet.write_table(pa.table({"id": np.arange(rows), **columns, "y": label}), path)


def peak_of_worker_bytes(running: Running) -> int:
    """Returns the most memory of the worker's own. The pages of files that it reads are the kernel's, which can drop
    them."""
    peak_kib = 0
    while running.process.poll() is None:
        for process in psutil.Process(running.process.pid).children(recursive=True):
            status = Path(f"/proc/{process.pid}/status")
            try:
                if "parallax_runner.worker" in process.cmdline():
                    peak_kib = max(peak_kib, int(re.findall(r"RssAnon:\s+(\d+)", status.read_text())[0]))
            except (OSError, psutil.Error, IndexError):
                continue  # it has ended
        time.sleep(0.02)
    return 1024 * peak_kib


def test_ten_times_the_rows_need_no_more_memory(tmp_path: Path) -> None:
    for name, rows in {"few": FEW, "many": MANY}.items():
        write(tmp_path / f"{name}.parquet", rows)
    trained = launch(*LINES, cwd=tmp_path, name="trained").expect_success()
    peaks = []
    for name, rows in {"few": FEW, "many": MANY}.items():
        lines = (*LINES, f"data.test={name}.parquet", "read.part=test", "action=predict")
        given = (*lines, f"ckpt.resume={trained.run_dir}")
        running = Running(given, run_dir=tmp_path / f"of_{name}", cwd=tmp_path, python_path=None)
        peaks.append(peak_of_worker_bytes(running))
        done = running.wait().expect_success()
        files = sorted((done.run_dir / "predictions").glob("*.parquet"))
        np.testing.assert_array_equal(pa.parquet.read_table(files, columns=["id"])["id"], np.arange(rows).astype(str))
    few_bytes, many_bytes = peaks
    more_bytes = (MANY - FEW) * NUMBERS * FLOAT_BYTES
    assert few_bytes > 0
    assert many_bytes < few_bytes + more_bytes / 3
