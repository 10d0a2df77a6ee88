"""Rows are split evenly, and shards spread over servers by what they hold and what they serve."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from parallax_runner.planning.placement import balance, split_rows


@given(rows=st.integers(1, 10_000), data=st.data())
def test_shards_have_all_rows_evenly(rows: int, data: st.DataObject) -> None:
    partitions = data.draw(st.integers(1, min(rows, 50)))
    sizes = split_rows(rows, partitions)
    assert len(sizes) == partitions and sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1
    assert sizes == [sum(row % partitions == shard for row in range(rows)) for shard in range(partitions)]


def test_a_known_split() -> None:
    assert split_rows(10, 4) == [3, 3, 2, 2]
    assert split_rows(3, 3) == [1, 1, 1]


def loads(sizes: list[int], chosen: tuple[int, ...] | list[int], servers: int) -> list[int]:
    return [sum(size for size, at in zip(sizes, chosen, strict=True) if at == server) for server in range(servers)]


@given(sizes=st.lists(st.integers(0, 1000), max_size=30), servers=st.integers(1, 5))
def test_no_server_carries_more_than_its_share_and_one_item(sizes: list[int], servers: int) -> None:
    chosen = balance(sizes, sizes, servers)
    assert len(chosen) == len(sizes)
    assert set(chosen) <= set(range(servers))
    largest = max(sizes, default=0)
    assert max(loads(sizes, chosen, servers)) <= sum(sizes) / servers + largest * (1 - 1 / servers)


@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=6), servers=st.integers(2, 3))
def test_the_bound_of_largest_first(sizes: list[int], servers: int) -> None:
    """Graham 1969: at most 4/3 - 1/(3m) times the best there is."""
    every = itertools.product(range(servers), repeat=len(sizes))
    best = min(max(loads(sizes, chosen, servers)) for chosen in every)
    found = max(loads(sizes, balance(sizes, sizes, servers), servers))
    assert found <= best * (4 / 3 - 1 / (3 * servers)) + 1e-9


def test_equal_shards_go_round_the_servers() -> None:
    assert balance([5, 5, 5, 5], [5, 5, 5, 5], 2) == [0, 1, 0, 1]
    assert balance([1, 9, 4, 4], [1, 9, 4, 4], 2) == [1, 0, 1, 1]


def test_what_has_a_server_stays_there_and_counts() -> None:
    assert balance([9, 5, 5, 1], [9, 5, 5, 1], 2, [0, None, None, None]) == [0, 1, 1, 0]


@given(data=st.data(), servers=st.integers(1, 5))
def test_hot_shards_cost_a_bounded_share_of_bytes(data: st.DataObject, servers: int) -> None:
    """Of bytes held and of bytes served no server has more than twice the mean and one item's largest share."""
    sizes = data.draw(st.lists(st.integers(1, 1000), min_size=1, max_size=30))
    served = data.draw(st.lists(st.integers(1, 1000), min_size=len(sizes), max_size=len(sizes)))
    chosen = balance(sizes, served, servers)
    largest = max(max(sizes) / sum(sizes), max(served) / sum(served))
    for amounts in (sizes, served):
        assert max(loads(amounts, chosen, servers)) / sum(amounts) <= 2 / servers + largest + 1e-9


@given(servers=st.integers(2, 6), cold=st.integers(0, 40), data=st.data())
def test_hot_shards_do_not_share_a_server(servers: int, cold: int, data: st.DataObject) -> None:
    hot = data.draw(st.integers(1, servers))
    # Any order; all of a size, a hot one touched twice as often as all the cold ones together.
    order = data.draw(st.permutations([True] * hot + [False] * cold))
    served = [float(2 * cold + 2) if is_hot else 1.0 for is_hot in order]
    chosen = balance([100] * len(order), served, servers)
    places = [server for server, is_hot in zip(chosen, order, strict=True) if is_hot]
    assert len(set(places)) == hot
    held = loads([1] * len(order), chosen, servers)
    assert max(held) <= 2 * len(order) / servers + 1


def test_what_is_held_alone_would_put_the_hot_shards_together() -> None:
    held = [10, 10, 10, 10]
    assert balance(held, held, 2) == [0, 1, 0, 1]
    assert balance(held, [50.0, 1.0, 50.0, 1.0], 2) == [0, 0, 1, 1]


def test_one_that_serves_little_fills_the_server_that_has_less() -> None:
    """A kernel that all ranks ask for, two halves of an embedding and two of a softmax: the kernel has the embedding
    beside it. Taken in the order of the larger share, each server had a half of both, and one the kernel, too."""
    held, served = [1, 50, 50, 49, 49], [33.0, 7.0, 7.0, 23.0, 23.0]
    assert balance(held, served, 2) == [0, 0, 0, 1, 1]


def test_of_two_orders_that_is_taken_which_serves_more_evenly() -> None:
    """Quarters of an embedding and of a softmax, and a kernel and a projection that all ranks ask for. By what is
    served the quarters of the embedding come after the projection, and one of them lands beside the kernel."""
    held = [124] * 4 + [5, 1] + [124] * 4
    served = [36.0] * 4 + [327.0, 41.0] + [121.0] * 4
    chosen = balance(held, served, 4)
    assert [chosen.count(server) for server in range(4)].count(1) == 1
    assert max(loads(served, chosen, 4)) == 327
    assert max(loads(held, chosen, 4)) <= 3 * 124 + 1
