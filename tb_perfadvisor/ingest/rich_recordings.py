"""Takes names from a rich recording of a run, and times from a light one of other steps.

Shapes and stacks slow the program, so our recorders make one recording with them and others
without. A program runs the same operators in each step: where the operators of a step on a thread
are the same, one by one, those of the light recording get the shapes and lines of the rich one's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.origins import user_line
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, places_by_value
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32, OperatorTable


def named_by(trace: Trace, rich: Trace) -> Trace:
    """A light trace with the shapes, types and lines of a rich trace's operators.

    `rich` is a trace of other steps of the same process. Returns the trace itself if no step's
    operators are the same.
    """
    theirs: dict[tuple[str, ...], Int32] = {}
    for rows in _segments(rich):
        theirs.setdefault(rich.texts(rich.events.name[rows]), rows)
    pairs = [
        (rows, theirs[names])
        for rows in _segments(trace)
        if (names := trace.texts(trace.events.name[rows])) in theirs
    ]
    if not pairs:
        return trace
    ours = np.concatenate([rows for rows, _ in pairs])
    order = np.argsort(ours)
    matched = np.concatenate([rows for _, rows in pairs])[order]
    return _with_attributes(trace, ours[order], rich, matched)


def _segments(trace: Trace) -> Iterator[Int32]:
    """The operators of each step on each thread, in order of start."""
    events, steps = trace.events, trace.rows(EventKind.STEP)
    rows = trace.rows(EventKind.OPERATOR)
    step = np.searchsorted(events.start_ns[steps], events.start_ns[rows], side="right")
    for _, on_track in places_by_value(events.track[rows]):
        for number, places in places_by_value(step[on_track]):
            if number > 0 or len(steps) == 0:
                yield rows[on_track[places]]


def _with_attributes(trace: Trace, rows: Int32, rich: Trace, matched: Int32) -> Trace:
    """The trace with attributes of matched operators.

    `rows` are operators of the light trace, in order, and `matched` one of the rich trace for each;
    both have shape (n,).
    """
    strings = {text: index for index, text in enumerate(trace.strings)}
    table, theirs = trace.operators, rich.operators
    all_rows = np.union1d(table.row, rows).astype(np.int32)
    place, known = np.searchsorted(all_rows, rows), np.searchsorted(all_rows, table.row)

    def column(name: str, taken: Int32) -> Int32:
        """A column of texts: those of the trace, and where it has none, those that were taken."""
        own: Int32 = np.full(len(all_rows), -1, np.int32)
        own[known] = getattr(table, name)
        added = np.full(len(all_rows), -1, np.int32)
        added[place] = _moved(rich, taken, strings)
        return np.where(own >= 0, own, added).astype(np.int32)

    attributes = {
        name: column(name, rich.by_event(theirs.row, getattr(theirs, name), -1)[matched])
        for name in ("shapes", "dtypes", "values", "module")
    }
    lines = lines_of(rich, matched)
    frame = np.full(len(all_rows), -1, np.int32)
    frame[known] = table.frame
    texts = [strings.setdefault(line, len(strings)) if line else -1 for line in lines]
    frame[place] = np.where(frame[place] >= 0, frame[place], texts)
    sequence = np.full(len(all_rows), -1, np.int64)
    sequence[known] = table.sequence
    operators = OperatorTable(row=all_rows, frame=frame, sequence=sequence, **attributes)
    columns: tuple[NDArray[Any], ...] = (all_rows, frame, sequence, *attributes.values())
    for values in columns:
        values.setflags(write=False)
    return replace(
        trace,
        operators=operators,
        strings=tuple(strings),
        source=replace(trace.source, named_by=rich.source.path),
    )


def _moved(rich: Trace, values: Int32, strings: dict[str, int]) -> Int32:
    """Indices of the rich trace's strings as those of the light one's; adds them; -1 stays."""
    moved = np.full(len(rich.strings) + 1, -1, np.int32)
    for index in distinct(values[values >= 0]).tolist():
        moved[index] = strings.setdefault(rich.strings[index], len(strings))
    return moved[values]


def lines_of(rich: Trace, rows: Int32) -> list[str]:
    """The user's line of each operator: the innermost frame of the user's code around it."""
    events = rich.events
    is_python = events.kind == EventKind.PYTHON
    text_of = [""] * (len(rich.strings) + 1)
    is_user = np.zeros(len(rich.strings) + 1, np.bool_)
    for name in distinct(events.name[is_python]).tolist():
        line = user_line(rich.strings[name])
        if line is not None:
            text_of[name], is_user[name] = line, True
    own = rich.by_event(rich.operators.row, rich.operators.frame, -1)[rows]
    around = nearest(events.parent, is_python & is_user[events.name])[rows]
    names = np.where(around >= 0, events.name[around], -1).tolist()
    return [
        rich.text(frame) or text_of[name] for frame, name in zip(own.tolist(), names, strict=True)
    ]
