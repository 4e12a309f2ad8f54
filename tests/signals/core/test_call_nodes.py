"""Calls of one name below the same callers are one node."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.signals.core.operators import fold_calls


def test_calls_fold_below_their_callers() -> None:
    # a: b(5) b(7) a: b(1); b(2)      parents come first
    parent = np.array([-1, 0, 0, -1, 3, -1])
    name = np.array([10, 11, 11, 10, 11, 11])
    self_ns = np.array([100, 5, 7, 10, 1, 2])
    nodes, node = fold_calls(parent, name, self_ns)
    found = {
        (int(nodes.parent[place]), int(nodes.name[place])): (
            int(nodes.count[place]),
            int(nodes.self_ns[place]),
            int(nodes.total_ns[place]),
        )
        for place in range(len(nodes))
    }
    top = int(node[0])
    assert found == {
        (-1, 10): (2, 110, 123),
        (-1, 11): (1, 2, 2),
        (top, 11): (3, 13, 13),
    }
    assert node.tolist() == [top, node[1], node[1], top, node[1], node[5]]
    assert nodes.example[node[1]] == 1


def test_nothing_folds_to_nothing() -> None:
    nodes, node = fold_calls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert (len(nodes), node.size) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 3), st.integers(0, 9)), max_size=40))
def test_totals_are_own_times_of_all_below(calls: list[tuple[int, int, int]]) -> None:
    # Each call lies in one before it, or in none.
    parent = np.array([choice % (place + 1) - 1 for place, (choice, _, _) in enumerate(calls)])
    name = np.array([name for _, name, _ in calls], dtype=np.int64)
    self_ns = np.array([ns for _, _, ns in calls], dtype=np.int64)
    nodes, node = fold_calls(parent.astype(np.int64), name, self_ns)
    tops = nodes.parent < 0
    assert nodes.total_ns[tops].sum() == nodes.self_ns.sum() == self_ns.sum()
    assert nodes.count.sum() == len(calls)
    assert (nodes.parent < np.arange(len(nodes))).all()
    below = nodes.parent >= 0
    assert (nodes.total_ns[nodes.parent[below]] >= nodes.total_ns[below]).all()
    for place in range(len(calls)):
        above = node[parent[place]] if parent[place] >= 0 else -1
        assert nodes.parent[node[place]] == above
        assert nodes.name[node[place]] == name[place]
