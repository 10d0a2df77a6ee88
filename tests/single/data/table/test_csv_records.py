"""Records of CSV end where pyarrow's parser ends them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv as pa_csv
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parallax_runner.data.table.csv_records import end_of_records, record_ends
from parallax_runner.data.table.text_stream import records


def parsed_rows(data: bytes) -> int | None:
    """Returns the number of rows of one column that pyarrow finds, or None if it refuses the text."""
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(data),
            read_options=pa_csv.ReadOptions(column_names=["a"], use_threads=False, block_size=len(data) + 1),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(column_types={"a": pa.string()}),
        )
    except pa.ArrowInvalid:
        return None
    return table.num_rows


@settings(max_examples=500, deadline=None)
@given(st.text('"\nx', max_size=14).map(str.encode))
@example(b'x"\n"x"\n')
@example(b'"x""\n"\nx\n')
@example(b'""x"\n"\nx\n')
@example(b'"x"x"\nx\n')
def test_records_are_those_of_the_parser(text: bytes) -> None:
    data = text + b"\n"
    rows = parsed_rows(data)
    if rows is None or not data.strip():
        return
    starts, _ = records(data, record_ends(data, ","))
    assert len(starts) == rows


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text('",\nx', max_size=5), min_size=1, max_size=6), st.integers(0, 40))
def test_a_text_is_cut_only_between_records(cells: list[str], cut: int) -> None:
    quoted = ['"' + cell.replace('"', '""') + '"\n' for cell in cells]
    data = "".join(quoted).encode()
    start, more = data[: min(cut, len(quoted[0]) - 1)], data[min(cut, len(quoted[0]) - 1) :]
    ends = {len("".join(quoted[: number + 1]).encode()) for number in range(len(quoted))}
    assert set(record_ends(data, ",").tolist()) == ends
    assert len(start) + end_of_records(start, more, ",") == len(data)


def test_the_line_of_a_record_counts_all_newlines() -> None:
    data = b'a\n\n"x\ny"\r\n\r\nb'
    starts, lines = records(data, record_ends(data, ","))
    assert [data[start : start + 1] for start in starts] == [b"a", b'"', b"b"]
    assert lines.tolist() == [0, 2, 5]
