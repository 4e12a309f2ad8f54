"""Which iterator of which tf.data pipeline each call is of."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, unique_inverse
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
    """For each call its node; shape (calls,)."""


def kind_of(path: str) -> str:
    """What the last iterator of a chain does: `ParallelMap` of `Root::ParallelMapV2`."""
    return _VERSION.sub("", path.rsplit("::", 1)[-1])


def iterator_calls(trace: Trace) -> tuple[Int32, Int32]:
    """Rows of iterators' calls, and for each its place in the table; -1 for none."""
    names = trace.events.name
    of_work = trace.rows(EventKind.INPUT_WORK)
    known = distinct(names[of_work])
    is_call = np.zeros(len(trace.strings) + 1, dtype=bool)
    is_call[[name for name in known.tolist() if trace.strings[name].startswith(PREFIX)]] = True
    rows = of_work[is_call[names[of_work]]]
    place = trace.by_event(
        trace.iterators.row, np.arange(len(trace.iterators.row), dtype=np.int32), -1
    )[rows]
    return rows, place


def nodes_of(trace: Trace, rows: Int32, place: Int32) -> Nodes:
    """Group calls by chain and pipeline."""
    names, inverse = unique_inverse(trace.events.name[rows])
    full = [trace.strings[name][len(PREFIX) :] for name in names.tolist()]
    root, iterator = _roots(trace, place)
    known: dict[tuple[int, str], int] = {}
    keys, which = unique_inverse(root * len(names) + inverse)
    first = [(key // len(names), _INDEX.sub("", full[key % len(names)])) for key in keys.tolist()]
    for pair in sorted(set(first), key=lambda pair: (pair[0], pair[1].count("::"), pair[1])):
        known[pair] = len(known)
    of_row = np.array([known[pair] for pair in first], dtype=np.int32)[which]
    parents = []
    for number, path in known:
        above = path.rpartition("::")[0]
        while above and (number, above) not in known:
            above = above.rpartition("::")[0]
        parents.append(known.get((number, above), -1))
    repeats = np.zeros(len(known), dtype=np.int64)
    count = int(iterator.max(initial=0)) + 1
    np.add.at(repeats, distinct(of_row * np.int64(count) + iterator) // count, 1)
    return Nodes(
        path=tuple(path for _, path in known),
        parent=np.array(parents, dtype=np.int32),
        repeats=repeats,
        of_row=of_row,
    )


def _roots(trace: Trace, place: Int32) -> tuple[Int64, Int64]:
    """For each call a number of its pipeline and one of its iterator, counted from 0."""
    table = trace.iterators
    is_known = place >= 0
    iterator = np.where(is_known, table.iterator[place], 0) if len(table.row) else 0 * place
    numbers, first, inverse = np.unique(iterator, return_index=True, return_inverse=True)
    parent: dict[int, int] = {}
    label: dict[int, int] = {}
    for number, at in zip(numbers.tolist(), place[first].tolist(), strict=True):
        if number:
            parent[number] = int(table.parent[at])
            label[number] = int(table.dataset[at])
    found = []
    for number in numbers.tolist():
        seen = set()
        while parent.get(number) in parent and number not in seen:
            seen.add(number)
            number = parent[number]
        # Iterators of a later epoch are made of the same dataset.
        found.append(label.get(number, -1) + 1 if not parent.get(number) else 0)
    return np.array(found, dtype=np.int64)[inverse], np.asarray(inverse, dtype=np.int64)


def enclosing(trace: Trace, rows: Int32, is_call: NDArray[np.bool_]) -> Int32:
    """For each row the nearest call of an iterator around it, on its thread; -1 for none."""
    parent = trace.events.parent
    found = parent[rows]
    while (outside := (found >= 0) & ~is_call[np.maximum(found, 0)]).any():
        found = np.where(outside, parent[np.maximum(found, 0)], found)
    return found
