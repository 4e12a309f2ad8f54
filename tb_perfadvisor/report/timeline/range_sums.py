"""What takes the time of a range: its causes, operators, kernels, streams and lines.

The causes are those of the analysis, cut to the range; device work is what the analysis counts.
So the sums over the whole recording, or over a step, are the engine's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.report.timeline.window import TimelineEvents
from tb_perfadvisor.trace.integer_groups import distinct, places_by_value
from tb_perfadvisor.trace.intervals import overlap_ns, total_ns, union
from tb_perfadvisor.trace.kinds import EventKind
from tb_perfadvisor.trace.tables import Int32, Int64

MAX_ROWS = 100
"""Per table."""
MAX_STEPS = 1_000
"""To choose from."""


class _Cut(Struct, frozen=True):
    """The events of the reference worker in a range, cut to it; columns of shape (n,)."""

    events: Int64
    """Places in the columns of the stored events."""
    start_ns: Int64
    ns: Int64
    is_call: NDArray[np.bool_]
    """Operators of the host."""
    is_work: NDArray[np.bool_]
    own_ns: Int64
    """Of calls: without the operators inside; 0 for other events."""
    device_ns: Int64
    """Of the device's work; 0 for other events."""


def sum_range(stored: TimelineEvents, from_ns: int, to_ns: int) -> dict[str, Any]:
    """Sum up the reference worker's time in a range, on its own clock.

    The result has `causes`, and by name the tables `operators`, `kernels`, `streams` and `lines`,
    those that take the most time first. `step` is the one in the middle of the range, and the
    parts of it at which the range begins and ends; `steps` are all that there are.
    """
    cut = _cut(stored, from_ns, to_ns)
    kernels = np.flatnonzero(cut.is_work & (stored.kind[cut.events] == EventKind.KERNEL))
    counted = np.flatnonzero(cut.is_call | cut.is_work)
    owner = np.where(cut.is_call, cut.events, stored.operator[cut.events])
    operator = np.where(owner >= 0, stored.name[owner], -1)
    return {
        "from_ns": from_ns,
        "to_ns": to_ns,
        "step": _step_of(stored, from_ns, to_ns),
        "steps": stored.step_number[:MAX_STEPS].tolist(),
        "has_device": bool(stored.is_work.any()),
        "causes": _causes(stored, from_ns, to_ns),
        "operators": _table(stored, cut, counted, operator[counted]),
        "kernels": _table(stored, cut, kernels, stored.name[cut.events[kernels]]),
        "streams": _streams(stored, cut),
        "lines": _table(stored, cut, counted, stored.line[cut.events[counted]]),
    }


def range_of_step(
    stored: TimelineEvents, step: int | None, from_part: float, to_part: float
) -> tuple[int, int]:
    """The range between two parts of a step, which count from its start in lengths of it.

    Without a number, or if there is no such step, of the typical one; without steps, of the whole
    recording.
    """
    begin_ns, end_ns = 0, stored.whole_ns
    if stored.step_number.size:
        place = stored.place_of_step(step)
        begin_ns, end_ns = int(stored.step_start_ns[place]), int(stored.step_end_ns[place])
    length_ns = end_ns - begin_ns
    from_ns = max(begin_ns + round(from_part * length_ns), 0)
    return from_ns, max(begin_ns + round(to_part * length_ns), from_ns + 1)


def _step_of(stored: TimelineEvents, from_ns: int, to_ns: int) -> dict[str, Any] | None:
    """The step in the middle of a range, and the parts of it where the range begins and ends."""
    middle_ns = (from_ns + to_ns) // 2
    inside = np.flatnonzero((stored.step_start_ns <= middle_ns) & (stored.step_end_ns > middle_ns))
    if not inside.size:
        return None
    begin_ns, end_ns = stored.step_start_ns[inside[0]], stored.step_end_ns[inside[0]]
    return {
        "number": int(stored.step_number[inside[0]]),
        "from_part": float((from_ns - begin_ns) / (end_ns - begin_ns)),
        "to_part": float((to_ns - begin_ns) / (end_ns - begin_ns)),
    }


def _cut(stored: TimelineEvents, from_ns: int, to_ns: int) -> _Cut:
    is_of_worker = stored.track_worker[stored.track] == stored.worker
    events = np.flatnonzero(stored.is_inside(from_ns, to_ns) & is_of_worker)
    start_ns = np.maximum(stored.start_ns[events], from_ns)
    ns = np.minimum(stored.end_ns[events], to_ns) - start_ns
    is_call, is_work = stored.kind[events] == EventKind.OPERATOR, stored.is_work[events]
    inner = np.flatnonzero(is_call & (stored.operator[events] >= 0))
    inside_ns = np.bincount(
        stored.operator[events[inner]], weights=ns[inner], minlength=stored.start_ns.size
    ).astype(np.int64)
    return _Cut(
        events=events,
        start_ns=start_ns,
        ns=ns,
        is_call=is_call,
        is_work=is_work,
        own_ns=np.where(is_call, np.maximum(ns - inside_ns[events], 0), 0),
        device_ns=np.where(is_work, ns, 0),
    )


def _causes(stored: TimelineEvents, from_ns: int, to_ns: int) -> list[dict[str, Any]]:
    """The time of each cause, the largest first."""
    edges = np.array([from_ns]), np.array([to_ns])
    total_ns_of = {
        cause: int(overlap_ns(stored.intervals_of(index), *edges)[0])
        for index, cause in enumerate(stored.causes)
    }
    ranked = sorted(total_ns_of.items(), key=lambda item: -item[1])
    return [{"cause": cause, "total_ns": ns} for cause, ns in ranked if ns]


def _table(stored: TimelineEvents, cut: _Cut, rows: Int64, text: Int32 | Int64) -> dict[str, Any]:
    """Sums of some of the events by a text; those without one are left out."""
    is_known = text >= 0
    rows, text = rows[is_known], text[is_known]
    texts = distinct(text)
    group = np.searchsorted(texts, text)

    def summed(values: NDArray[Any]) -> Int64:
        # Exact: float64 holds integers up to 2^53 ns, 104 days.
        total: Int64 = np.bincount(group, weights=values[rows], minlength=len(texts)).astype(
            np.int64
        )
        return total

    own_ns, device_ns = summed(cut.own_ns), summed(cut.device_ns)
    calls, launched = summed(cut.is_call), summed(cut.is_work)
    count = np.where(calls > 0, calls, launched)
    return _ranked(
        [
            {"name": stored.texts[name], "count": count, "own_ns": own, "device_ns": device}
            for name, count, own, device in zip(
                texts.tolist(), count.tolist(), own_ns.tolist(), device_ns.tolist(), strict=True
            )
        ]
    )


def _streams(stored: TimelineEvents, cut: _Cut) -> dict[str, Any]:
    """The time in which each stream of the device works."""
    work = np.flatnonzero(cut.is_work)
    rows = []
    for track, places in places_by_value(stored.track[cut.events[work]]):
        start_ns, ns = cut.start_ns[work[places]], cut.ns[work[places]]
        busy_ns = total_ns(union(start_ns, start_ns + ns))
        name = stored.track_label[track]
        rows.append({"name": name, "count": len(places), "own_ns": 0, "device_ns": busy_ns})
    return _ranked(rows)


def _ranked(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows that take the most time, on the device or else on the host."""
    has_device = any(row["device_ns"] for row in rows)
    key = "device_ns" if has_device else "own_ns"
    ranked = sorted(rows, key=lambda row: (-row[key], -row["own_ns"], row["name"]))
    return {"rows": ranked[:MAX_ROWS], "truncated": max(len(ranked) - MAX_ROWS, 0)}
