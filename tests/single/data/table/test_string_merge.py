"""The dictionaries of all blocks become one for each column, numbered in the order in which strings first appear."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from parallax_runner.data.table.array_file import ArrayFile, mapped
from parallax_runner.data.table.local_codes import LocalCodes
from parallax_runner.data.table.stored_table import Strings
from parallax_runner.data.table.string_merge import StringMerge

ALPHABET = list("abé日\x00")
Blocks = list[dict[str, list[str | None]]]


def random_blocks(seed: int, names: tuple[str, ...]) -> Blocks:
    """Returns the cells of each block, for each column."""
    generator = np.random.default_rng(seed)
    blocks: Blocks = []
    for _ in range(20):  # more than are merged at once
        rows = int(generator.integers(0, 30))
        blocks.append({name: [_word(generator) for _ in range(rows)] for name in names})
    return blocks


def _word(generator: np.random.Generator) -> str | None:
    if generator.random() < 0.1:
        return None
    return "".join(generator.choice(ALPHABET, generator.integers(0, 4)))


def merged(folder: Path, names: tuple[str, ...], blocks: Blocks, threads: int) -> tuple[np.ndarray, dict[str, Strings]]:
    """Returns the codes of all rows, int32 [rows, names], and the strings of each column."""
    merge = StringMerge(folder, names)
    final = ArrayFile(folder / "final.npy", np.dtype(np.int32), (len(names),))
    local = LocalCodes(folder / "local", names, final)
    for number, block in enumerate(blocks):
        coded = {name: pa.array(cells, pa.string()).dictionary_encode() for name, cells in block.items()}
        merge.add({name: array.dictionary for name, array in coded.items()})
        codes = [[0 if one is None else one + 1 for one in array.indices.to_pylist()] for array in coded.values()]
        local.append(np.array(codes, np.uint16 if number % 2 else np.int32).T, number)
    paths = {name: (folder / f"{name}.offsets.npy", folder / f"{name}.data.npy") for name in names}
    with ThreadPoolExecutor(threads) as pool:
        merge.finish([local], paths, pool)
    final.close()
    strings = {name: Strings(mapped(offsets), mapped(data)) for name, (offsets, data) in paths.items()}
    assert local.final_bytes == final.size_bytes
    return mapped(final.path), strings


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_strings_are_numbered_in_the_order_in_which_they_appear(seed: int, threads: int, tmp_path: Path) -> None:
    names = ("a", "b", "c")[: 1 + seed % 3]
    blocks = random_blocks(seed, names)
    codes, strings = merged(tmp_path, names, blocks, threads)
    for number, name in enumerate(names):
        cells = [cell for block in blocks for cell in block[name]]
        words = list(dict.fromkeys(["", *(cell or "" for cell in cells)]))
        found = strings[name]
        assert [found.bytes_of(code).decode() for code in range(found.count)] == words
        assert codes[:, number].tolist() == [words.index(cell or "") for cell in cells]


@pytest.mark.parametrize("blocks", [[], [{"a": []}], [{"a": [None, ""]}, {"a": []}]])
def test_a_column_without_strings_has_the_empty_one(blocks: Blocks, tmp_path: Path) -> None:
    codes, strings = merged(tmp_path, ("a",), blocks, 1)
    assert (strings["a"].count, strings["a"].bytes_of(0)) == (1, b"")
    assert codes.tolist() == [[0]] * sum(len(block["a"]) for block in blocks)


def test_a_part_of_a_dictionary(tmp_path: Path) -> None:
    merge = StringMerge(tmp_path, ["a"])
    merge.add({"a": pa.array(["no", "é", "b", "no"]).slice(1, 2)})
    merge.add({"a": pa.array(["b", "c"], pa.large_string()).slice(1)})
    paths = {"a": (tmp_path / "o.npy", tmp_path / "d.npy")}
    with ThreadPoolExecutor(1) as pool:
        merge.finish([], paths, pool)
    strings = Strings(mapped(paths["a"][0]), mapped(paths["a"][1]))
    assert [strings.bytes_of(code).decode() for code in range(strings.count)] == ["", "é", "b", "c"]


def test_no_string_columns(tmp_path: Path) -> None:
    merge = StringMerge(tmp_path, [])
    merge.add({})
    with ThreadPoolExecutor(1) as pool:
        merge.finish([], {}, pool)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npy", "offsets.npy"]
