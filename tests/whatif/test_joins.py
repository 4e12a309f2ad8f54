"""A graph reduced to its joins comes to the same moments as arc by arc."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.whatif.joins import plan_joins
from tb_perfadvisor.whatif.laps import lap_of

CHAINS = 3


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int, int]]]:
    """The chain of each node, and arcs (target, source, lag): along its chain, and others."""
    chain = draw(st.lists(st.integers(0, CHAINS - 1), min_size=1, max_size=40))
    last: dict[int, int] = {}
    arcs = []
    for node, own in enumerate(chain):
        along = last.get(own, len(chain) + own)
        others = draw(st.sets(st.integers(0, node - 1), max_size=3)) if node else set()
        arcs += [(node, source, draw(st.integers(-5, 50))) for source in {along, *others}]
        last[own] = node
    return chain, sorted(arcs)


@given(graphs(), st.lists(st.integers(-100, 100), min_size=CHAINS, max_size=CHAINS), st.data())
def test_wanted_moments_are_those_of_all_arcs_one_by_one(
    graph: tuple[list[int], list[tuple[int, int, int]]], tails: list[int], data: st.DataObject
) -> None:
    chain, arcs = graph
    at: list[int | None] = [None] * len(chain) + list(tails)
    for target, source, lag_ns in arcs:
        before, known = at[source], at[target]
        assert before is not None
        at[target] = before + lag_ns if known is None else max(known, before + lag_ns)
    wanted = data.draw(st.lists(st.integers(0, len(chain) - 1), max_size=3))
    target, source, lag = (np.array(column) for column in zip(*arcs, strict=True))
    plan = plan_joins(
        source, target, np.array(chain, dtype=np.int32), CHAINS, np.array(wanted, dtype=int)
    )
    assert lap_of(plan.joins(lag))(tails) == [at[node] for node in wanted]
    # Other distances between the same: the plan stays.
    lag = np.array(data.draw(st.lists(st.integers(0, 50), min_size=len(lag), max_size=len(lag))))
    later: list[int] = [0] * len(chain) + list(tails)
    for node in range(len(chain)):
        into = np.flatnonzero(target == node).tolist()
        later[node] = max(later[source[arc]] + int(lag[arc]) for arc in into)
    assert lap_of(plan.joins(lag))(tails) == [later[node] for node in wanted]


@pytest.mark.parametrize("launches", [1, 50])
def test_work_that_is_launched_in_one_go_is_a_first_piece_and_a_last(launches: int) -> None:
    # The host (chain 0) launches every 10 ns; each piece of work (chain 1) takes 15.
    chain = [0, 1] * launches
    arcs = []
    for call in range(0, 2 * launches, 2):
        tail = len(chain)
        arcs.append((call, call - 2 if call else tail, 10))
        arcs.append((call + 1, call, 20))
        arcs.append((call + 1, call - 1 if call else tail + 1, 15))
    target, source, lag = (np.array(column) for column in zip(*sorted(arcs), strict=True))
    last = np.array([len(chain) - 2, len(chain) - 1])
    joins = plan_joins(source, target, np.array(chain, dtype=np.int32), 2, last).joins(lag)
    assert len(joins.source) == len({1, 2 * launches - 1})
    # The host's end follows its tail, the device's is the last join: behind two tails and never.
    assert joins.end_source.tolist() == [0, 2 + len(joins.source)]
    # The device is the slower: the first launch, its 20, and 15 for each that follows.
    assert lap_of(joins)([0, 0]) == [10 * launches, 10 + 20 + 15 * (launches - 1)]
