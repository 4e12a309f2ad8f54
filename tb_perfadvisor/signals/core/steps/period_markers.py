"""Step markers from the period of the sequence of kernels, or of operators without kernels."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.host_activity import busiest_host_track
from tb_perfadvisor.signals.core.steps.marker_rows import MIN_PERIOD_NS, MIN_REPEATS, Markers
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import unique_inverse

_MATCH = 0.95
"""Share of the sequence that must repeat: autotuning changes a kernel here and there."""
_MIN_EVENTS = 100
"""A step takes more kernels than a transformer layer, which repeats as well: a few dozen."""

# A part of a model by its path (`FSDP::pre_forward (blocks.3.attention)`), or as PyTorch's profiler
# numbers the modules of a class (`nn.Module: Block_3`).
_NUMBERED_PART = re.compile(r"(?:\w\.|^nn\.Module: \w+_)(\d{1,6})(?=[.)\s]|$)")


def period_markers(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    """The period of the sequence of kernels, or of operators without kernels."""
    rows, what = timeline.rows, "kernel"
    if len(rows) == 0:
        rows, what = trace.rows(EventKind.OPERATOR), "operator"
        rows = rows[trace.events.track[rows] == busiest_host_track(trace)]
        rows = rows[trace.events.parent[rows] < 0]
    names, start = trace.events.name[rows], trace.events.start_ns[rows]
    count = len(names)
    if count < MIN_REPEATS * _MIN_EVENTS:
        return None
    unique, occurrences = np.unique(names, return_counts=True)
    candidates = unique[occurrences >= MIN_REPEATS]
    # The rarest names occur once per step; common names occur many times in it.
    rarest = candidates[np.argsort(occurrences[occurrences >= MIN_REPEATS], kind="stable")][:8]
    for name in rarest.tolist():
        at = np.flatnonzero(names == name)
        period = int(np.median(np.diff(at)))
        if period < _MIN_EVENTS or count < MIN_REPEATS * period:
            continue
        if float((names[period:] == names[:-period]).mean()) < _MATCH:
            continue
        regular = at[: 1 + int(np.argmax(np.append(np.diff(at) != period, True)))]
        if len(regular) < MIN_REPEATS or float(np.median(np.diff(start[regular]))) < MIN_PERIOD_NS:
            continue
        bounds = start[regular]
        if _repeats_parts(trace, len(bounds) - 1):
            return None
        return Markers(
            source=f"the period of the {what} sequence ({period} {what}s)",
            is_inferred=True,
            number=np.arange(len(bounds) - 1, dtype=np.int64),
            start_ns=bounds[:-1],
            end_ns=bounds[1:],
            marked_ends=False,
            track=-1,
            is_on_device=len(timeline.rows) > 0,
        )
    return None


def _repeats_parts(trace: Trace, periods: int) -> bool:
    """Whether each period runs the next of a model's numbered parts: layers of a single step."""
    rows = trace.rows(EventKind.ANNOTATION, EventKind.PYTHON)
    ids, name = unique_inverse(trace.events.name[rows])
    numbers: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    for index, text in enumerate(trace.texts(ids)):
        for found in _NUMBERED_PART.finditer(text):
            numbers[text[: found.start(1)], text[found.end(1) :]][index] = int(found[1])
    for number in numbers.values():
        if len(number) < MIN_REPEATS or not periods <= 2 * len(number) <= 4 * periods:
            continue
        runs = [number[index] for index in name[np.isin(name, [*number])].tolist()]
        # A step that ran twice would run each of them twice.
        if {*np.diff(runs).tolist()} in ({1}, {-1}):
            return True
    return False
