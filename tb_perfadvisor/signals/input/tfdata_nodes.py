"""The iterator and the tf.data pipeline that each call belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, unique_inverse
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32, Int64

PREFIX = "Iterator::"
_VERSION = re.compile(r"V\d+$")
_INDEX = re.compile(r"\[[^\]]*\]")


class Nodes(Struct, frozen=True):
    """The iterators of all pipelines, parents before their children; columns are (nodes,)."""

    path: tuple[str, ...]
    parent: Int32
    repeats: Int64
    of_row: Int32
    """Node of each call; shape (calls,)."""


def kind_of(path: str) -> str:
    """The kind of the last iterator of a chain: `ParallelMap` for `Root::ParallelMapV2`."""
    return _VERSION.sub("", path.rsplit("::", 1)[-1])


def parents_of_paths(paths: Sequence[tuple[int, str]]) -> list[int]:
    """The place of the nearest chain of the same pipeline that each one continues; -1 for none.

    Args:
        paths: Distinct pairs of a pipeline's number and a chain, such as `Root::Map`.
    """
    parts = [(number, *path.split("::")) for number, path in paths]
    parents = [-1] * len(paths)
    above: list[int] = []
    # Sorted, each chain comes directly before those that continue it.
    for place in sorted(range(len(paths)), key=parts.__getitem__):
        while above and parts[place][: len(parts[above[-1]])] != parts[above[-1]]:
            above.pop()
        parents[place] = above[-1] if above else -1
        above.append(place)
    return parents


def iterator_calls(trace: Trace) -> tuple[Int32, Int32]:
    """Rows of iterator calls, and their entries in the iterator table; -1 for none."""
    names = trace.events.name
    work = trace.rows(EventKind.INPUT_WORK)
    known = distinct(names[work])
    is_call = np.zeros(len(trace.strings) + 1, dtype=bool)
    is_call[[name for name in known.tolist() if trace.strings[name].startswith(PREFIX)]] = True
    rows = work[is_call[names[work]]]
    entry = trace.by_event(
        trace.iterators.row, np.arange(len(trace.iterators.row), dtype=np.int32), -1
    )[rows]
    return rows, entry


def nodes_of(trace: Trace, rows: Int32, entry: Int32) -> Nodes:
    """Group calls by chain and pipeline."""
    names, inverse = unique_inverse(trace.events.name[rows])
    full = [trace.strings[name][len(PREFIX) :] for name in names.tolist()]
    root, iterator = _roots(trace, entry)
    known: dict[tuple[int, str], int] = {}
    keys, key_of_row = unique_inverse(root * len(names) + inverse)
    pairs = [(key // len(names), _INDEX.sub("", full[key % len(names)])) for key in keys.tolist()]
    for pair in sorted(set(pairs), key=lambda pair: (pair[0], pair[1].count("::"), pair[1])):
        known[pair] = len(known)
    of_row = np.array([known[pair] for pair in pairs], dtype=np.int32)[key_of_row]
    parents = parents_of_paths(list(known))
    repeats = np.zeros(len(known), dtype=np.int64)
    count = int(iterator.max(initial=0)) + 1
    np.add.at(repeats, distinct(of_row * np.int64(count) + iterator) // count, 1)
    return Nodes(
        path=tuple(path for _, path in known),
        parent=np.array(parents, dtype=np.int32),
        repeats=repeats,
        of_row=of_row,
    )


def _roots(trace: Trace, entry: Int32) -> tuple[Int64, Int64]:
    """Numbers of the pipeline and the iterator of each call, counted from 0."""
    table = trace.iterators
    is_known = entry >= 0
    iterator = np.where(is_known, table.iterator[entry], 0) if len(table.row) else 0 * entry
    numbers, first, inverse = np.unique(iterator, return_index=True, return_inverse=True)
    parent: dict[int, int] = {}
    label: dict[int, int] = {}
    for number, at in zip(numbers.tolist(), entry[first].tolist(), strict=True):
        if number:
            parent[number] = int(table.parent[at])
            label[number] = int(table.dataset[at])
    roots = []
    root_of: dict[int, int] = {}
    for number in numbers.tolist():
        passed, seen = [], set()
        while number not in root_of and parent.get(number) in parent and number not in seen:
            seen.add(number)
            passed.append(number)
            number = parent[number]
        number = root_of.get(number, number)
        root_of.update(dict.fromkeys(passed, number))
        # A later epoch makes new iterators from the same dataset.
        roots.append(label.get(number, -1) + 1 if not parent.get(number) else 0)
    return np.array(roots, dtype=np.int64)[inverse], np.asarray(inverse, dtype=np.int64)


def enclosing(trace: Trace, rows: Int32, is_call: NDArray[np.bool_]) -> Int32:
    """The innermost call around each row, on its thread; -1 for none.

    Args:
        trace: The trace.
        rows: Events; shape (n,).
        is_call: Whether each event is a call; shape (events,).
    """
    above = trace.events.parent[rows]
    around = nearest(trace.events.parent, is_call)
    return np.where(above >= 0, around[above], np.int32(-1))
