"""The steps of a trace, and their kinds.

Kinds of steps: those that accumulate gradients, those that update, evaluation, longer ones.

Steps of different kinds do different work, so a mean over them depends on which of them were
recorded. Each kind gets figures of its own, and a regular sequence is a cycle.

A step owns the work that it launched. It has a window on the host and one on the device (see
`windows`), and the side that decides how long steps take tells its time. Partial and warm-up
steps are excluded, each with its number and reason; outliers are not. If markers leave time between
them, the last step is partial: the time after its marker was not recorded, and n-1 gaps must not be
divided by n steps. If unrecorded work still ran when the recording began, the window begins after
it, and the steps that it ran in are partial.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.steps.launched_work import (
    LaunchedWork,
    launched_work,
    owner_by_time,
)
from tb_perfadvisor.signals.core.steps.marker_rows import MIN_REPEATS, Markers
from tb_perfadvisor.signals.core.steps.markers import find_markers
from tb_perfadvisor.signals.core.steps.partial_steps import (
    EARLIER_WORK,
    Excluded,
    Used,
    has_end,
    warm_up,
    whole_steps,
    without_missing_end,
)
from tb_perfadvisor.signals.core.steps.periods import longer
from tb_perfadvisor.signals.core.steps.server_annotations import server_annotations
from tb_perfadvisor.signals.core.steps.windows import (
    Pace,
    Side,
    Windows,
    fetch_before_work,
    pace_of,
    windows_of,
)
from tb_perfadvisor.soundness.ranges import BACKWARD, UPDATE
from tb_perfadvisor.trace import EventKind, Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import is_in, row_mask
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.names import rows_named
from tb_perfadvisor.trace.tables import Int32, Int64

_FEWEST = 2
"""A single step that differs may be an outlier, or cut off."""

LEAST_SET_UP_SHARE = 0.05
"""A smaller part of the recording changes no figure by more."""
_RECURRING_SHARE = 0.5
"""If a later pause between kernels holds copies and is that long, the set-up recurs."""

_NONE = np.empty(0, dtype=np.int64)
Mask = NDArray[np.bool_]


class Kinds(Struct, frozen=True):
    """The kind of each marker."""

    of_marker: Int64
    """Index into `names`. Shape (markers,)."""
    names: tuple[str, ...]
    """In plain words; a single empty one if all steps are alike."""
    period: int = 0
    """Steps in a cycle, of which the last one is of the second kind; 0 without a cycle."""


def step_kinds(trace: Trace, windows: Windows) -> Kinds:
    """The kinds of steps that the markers show.

    An inference server states its own kinds, which have views and rules of their own.
    """
    alike = Kinds(np.zeros(len(windows.host_start_ns), dtype=np.int64), ("",))
    if trace.totals is not None or len(server_annotations(trace)):
        return alike
    update, backward = _has(trace, windows, UPDATE), _has(trace, windows, BACKWARD)
    evaluates = ~update & ~backward & (windows.work_ns > 0)
    if backward.any() and evaluates.sum() >= _FEWEST and (~evaluates).sum() >= _FEWEST:
        return Kinds(evaluates.astype(np.int64), ("training", "forward pass only"))
    if backward.any() and not update.all() and (period := _period(update)):
        names = ("accumulates gradients", "updates the parameters")
        return Kinds(update.astype(np.int64), names, period)
    is_longer = longer(windows.work_ns)
    if period := _period(is_longer):
        return Kinds(is_longer.astype(np.int64), ("shorter", "longer"), period)
    return alike


def _has(trace: Trace, windows: Windows, pattern: re.Pattern[str]) -> Mask:
    """Whether events of a name begin in the host's window of each step."""
    rows = rows_named(trace, pattern, EventKind.OPERATOR, EventKind.ANNOTATION)
    at_ns = trace.events.start_ns[rows]
    owner = owner_by_time(windows.host_start_ns, windows.host_end_ns, at_ns)
    found: Mask = np.bincount(owner[owner >= 0], minlength=len(windows.host_start_ns)) > 0
    return found


def _period(is_second: Mask) -> int:
    """The distance of the steps that are of the second kind, if it is always the same; else 0.

    The sequence must cover all steps, except that the recording may begin or end inside a cycle.
    """
    place = np.flatnonzero(is_second)
    if len(place) < _FEWEST:
        return 0
    period = int(place[1] - place[0])
    is_regular = period > 1 and bool((np.diff(place) == period).all())
    covers = place[0] < period and place[-1] + period >= len(is_second)
    return period if is_regular and covers else 0


class Steps(Struct, frozen=True, kw_only=True):
    """The used steps. Without any, `source` is `none` and the window is the whole trace.

    The window begins after unrecorded work, with or without steps. Columns have shape (used,).
    """

    source: str
    is_inferred: bool = False
    number: Int64 = _NONE
    start_ns: Int64 = _NONE
    """The windows of the side that decides how long steps take. They lie end to end."""
    end_ns: Int64 = _NONE
    pace: Pace
    """How long steps take on the host and on the device, and which side decides."""
    host_start_ns: Int64 = _NONE
    host_end_ns: Int64 = _NONE
    device_start_ns: Int64 = _NONE
    """Those of the host if it is not known what the device did for which step."""
    device_end_ns: Int64 = _NONE
    marker_end_ns: Int64 = _NONE
    """End of each step's own marker, or of its work in it, at most the end of its window on the
    host."""
    marked_ends: bool = False
    """Whether each marker ends with its step's work, so that time may lie between markers (Keras,
    JAX). PyTorch's `ProfilerStep` covers everything up to the next one."""
    track: int = -1
    """Host track of the markers; -1 if they are not on a host track."""
    excluded: tuple[Excluded, ...]
    window_start_ns: int
    window_end_ns: int
    owner: Int32
    """The used step that each event belongs to: a host event by its start, device work by its
    launch; -1 for none. Without steps, 0 for the whole window. Shape (events,)."""
    kind: Int64 = _NONE
    """Index into `kind_names`."""
    kind_names: tuple[str, ...] = ("",)
    """In plain words; a single empty one if all steps are alike."""
    period: int = 0
    """Steps in a cycle, one of which is of the second kind; 0 without a cycle."""
    is_linked: bool = False
    """Whether the windows of both sides are known."""
    is_range: bool = False
    """Whether they are ranges of the program that are called like steps."""
    linked_by_order: str = ""
    """The program whose runs were matched with steps or calls by their order, if they were."""

    def __len__(self) -> int:
        """Number of used steps; 0 when none are known."""
        return len(self.start_ns)

    @property
    def count(self) -> int:
        """Divisor for per-step numbers: the number of used steps, or 1 if none are known."""
        return max(len(self), 1)

    @property
    def window_ns(self) -> int:
        """Length of the used window."""
        return self.window_end_ns - self.window_start_ns

    @property
    def duration_ns(self) -> Int64:
        """Of each used step."""
        return self.end_ns - self.start_ns

    @property
    def decided_by(self) -> Side:
        """The side whose windows tell how long steps take."""
        return self.pace.side

    def own(self, rows: Int32) -> Int32:
        """Those of some events that belong to used steps."""
        owned: Int32 = rows[self.owner[rows] >= 0]
        return owned


def find_steps(trace: Trace, timeline: DeviceTimeline, recorded_from_ns: int = 0) -> Steps:
    """The steps of one trace; without any, the whole window as one.

    `timeline` is the device that stands for the rank; its work was recorded from `recorded_from_ns`
    on.
    """
    markers = find_markers(trace, timeline)
    if markers is None:
        return _without_steps(trace, timeline, recorded_from_ns, ())
    work = launched_work(trace, timeline, markers)
    windows = windows_of(trace, timeline, markers, work)
    kinds = step_kinds(trace, windows)
    used = whole_steps(trace, timeline, markers, windows, kinds.of_marker, recorded_from_ns)
    if not len(used):
        return _without_steps(trace, timeline, recorded_from_ns, used.excluded)
    pace = pace_of(
        trace,
        timeline,
        windows,
        used.slice,
        is_on_device=markers.is_on_device,
        has_end=has_end(markers, used) and not markers.ends_with_work,
    )
    side = pace.side
    windows = windows.decided_by(side)
    start_ns, end_ns = windows.of(side)
    late = int(np.searchsorted(start_ns[used.slice], recorded_from_ns))
    used = used.without(markers, begin=late, reason=EARLIER_WORK)
    if not len(used):
        return _without_steps(trace, timeline, recorded_from_ns, used.excluded)
    if len(used) >= MIN_REPEATS:
        reason = warm_up(trace, start_ns[used.slice], end_ns[used.slice], markers.is_inferred)
        if reason:
            used = used.without(markers, begin=1, reason=f"warm-up: {reason}")
    if side is Side.HOST:
        used = without_missing_end(markers, used)
    return _used_steps(trace, markers, work, windows, kinds, used, pace)


def _used_steps(
    trace: Trace,
    markers: Markers,
    work: LaunchedWork,
    windows: Windows,
    kinds: Kinds,
    used: Used,
    pace: Pace,
) -> Steps:
    start_ns, end_ns = (column[used.slice] for column in windows.of(pace.side))
    host_start_ns, host_end_ns = windows.host_start_ns[used.slice], windows.host_end_ns[used.slice]
    device_start_ns = windows.device_start_ns[used.slice]
    device_end_ns = windows.device_end_ns[used.slice]
    marker_end_ns = host_end_ns
    if not markers.is_on_device:
        work_end_ns = markers.end_ns if markers.work_end_ns is None else markers.work_end_ns
        marker_end_ns = np.minimum(work_end_ns[used.slice], host_end_ns)
    return Steps(
        source=markers.source,
        is_inferred=markers.is_inferred,
        number=markers.number[used.slice],
        start_ns=start_ns,
        end_ns=end_ns,
        pace=pace,
        host_start_ns=host_start_ns,
        host_end_ns=host_end_ns,
        device_start_ns=device_start_ns,
        device_end_ns=device_end_ns,
        marker_end_ns=marker_end_ns,
        marked_ends=markers.marked_ends,
        track=markers.track,
        excluded=tuple(sorted(used.excluded, key=lambda step: step.number)),
        window_start_ns=int(start_ns[0]),
        window_end_ns=int(end_ns[-1]),
        owner=_owners(trace, work, (host_start_ns, host_end_ns), (device_start_ns, device_end_ns)),
        kind=kinds.of_marker[used.slice],
        kind_names=kinds.names,
        period=kinds.period,
        is_linked=windows.is_linked,
        is_range=markers.is_range,
        linked_by_order=work.by_order,
    )


def _owners(
    trace: Trace,
    work: LaunchedWork,
    host: tuple[Int64, Int64],
    device: tuple[Int64, Int64],
) -> Int32:
    """The step of each event; -1 for none. Shape (events,).

    `host` and `device` are start and end of their windows.
    """
    events = trace.events
    owners = np.empty(len(events), dtype=np.int32)
    known = work.launched_ns >= 0
    owners[work.rows[known]] = owner_by_time(*host, work.launched_ns[known])
    owners[work.rows[~known]] = owner_by_time(*device, events.start_ns[work.rows[~known]])
    is_other = ~row_mask(len(events), work.rows)
    is_launched = events.launched_by >= 0
    on_host = trace.tracks.kind[events.track] == TrackKind.HOST_THREAD
    launched = np.flatnonzero(is_other & is_launched & ~on_host)
    owners[launched] = owner_by_time(*host, events.start_ns[events.launched_by[launched]])
    for windows, rows in ((host, is_other & on_host), (device, is_other & ~on_host & ~is_launched)):
        owners[rows] = owner_by_time(*windows, events.start_ns[rows])
    owners.setflags(write=False)
    return owners


def _without_steps(
    trace: Trace,
    timeline: DeviceTimeline,
    recorded_from_ns: int,
    excluded: tuple[Excluded, ...],
) -> Steps:
    """The whole window as one, without set-up, and with the wait for the first work's batch."""
    start, end = recorded_span(trace, timeline)
    fetch = fetch_before_work(trace, timeline)
    if recorded_from_ns > start:
        start = min(recorded_from_ns, end)
    elif (set_up := find_set_up(trace, timeline)) is not None:
        start = set_up.end_ns
    elif fetch is not None:
        start = min(start, int(trace.events.start_ns[fetch.row]))
    work = launched_work(trace, timeline, None)
    host = (np.array([_first_launch(trace, work, start)]), np.array([end]))
    window = (np.array([start]), np.array([end]))
    return Steps(
        source="none",
        pace=Pace(Side.HOST if timeline.index is None else Side.DEVICE, 0.0, 0.0),
        excluded=tuple(sorted(excluded, key=lambda step: step.number)),
        window_start_ns=start,
        window_end_ns=end,
        owner=_owners(trace, work, host, window),
    )


def _first_launch(trace: Trace, work: LaunchedWork, start_ns: int) -> int:
    """When the outermost operator begins that launched the first work from some time on."""
    events = trace.events
    rows = work.rows[(events.start_ns[work.rows] >= start_ns) & (work.launched_ns >= 0)]
    first = int(events.launched_by[rows[0]]) if len(rows) else -1
    if first < 0:
        return start_ns
    around = int(events.parent[first])
    while around >= 0 and events.kind[around] == EventKind.OPERATOR:
        first, around = around, int(events.parent[around])
    return min(start_ns, int(events.start_ns[first]))


def recorded_span(trace: Trace, timeline: DeviceTimeline) -> tuple[int, int]:
    """The span of the work: idle time at both ends of a profile comes from how it was recorded."""
    if len(timeline.busy):
        return int(timeline.busy[0, 0]), int(timeline.busy[-1, 1])
    rows = trace.rows(EventKind.OPERATOR)
    if len(rows) == 0:
        rows = np.arange(len(trace.events), dtype=np.int32)
    if len(rows) == 0:
        return 0, 0
    return int(trace.events.start_ns[rows].min()), int(trace.events.end_ns[rows].max())


class SetUp(Struct, frozen=True):
    """What a device does before its first kernel, and never again: a model is loaded.

    Copies of parameters are no batches. If a recording without steps begins with them, the program
    itself begins with the first kernel. Copies that recur are a part of the program.
    """

    start_ns: int
    end_ns: int
    recorded_ns: int
    """From the first to the last work of the device, set-up included."""
    copies: int
    size_bytes: int
    """Of all copies; 0 if that is unknown."""


def find_set_up(trace: Trace, timeline: DeviceTimeline) -> SetUp | None:
    """The set-up with which the device's work begins; None if there is none, or little."""
    events, rows = trace.events, timeline.rows
    kind = next((device.kind for device in trace.devices if device.index == timeline.index), "")
    computes = is_in(events.kind[rows], (EventKind.KERNEL, EventKind.COLLECTIVE))
    is_other = trace.totals is not None or kind == "tpu"
    if is_other or not computes.any() or not len(timeline.busy):
        return None
    first = int(computes.argmax())
    start_ns, end_ns = int(timeline.busy[0, 0]), int(timeline.busy[-1, 1])
    begins_ns = int(events.start_ns[rows[first]])
    if begins_ns - start_ns < LEAST_SET_UP_SHARE * (end_ns - start_ns):
        return None
    running = events.spans(rows[computes])
    pauses_ns = running[1:, 0] - running[:-1, 1]
    others = rows[first:][~computes[first:]]
    pause = last_before(running[:, 0], events.start_ns[others])
    pause = pause[(pause >= 0) & (pause < len(pauses_ns))]
    if len(pause) and int(pauses_ns[pause].max()) >= _RECURRING_SHARE * (begins_ns - start_ns):
        return None
    before = trace.by_event(trace.copies.row, trace.copies.size_bytes, 0)[rows[:first]]
    return SetUp(start_ns, begins_ns, end_ns - start_ns, first, int(np.maximum(before, 0).sum()))
