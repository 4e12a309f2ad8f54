"""The windows of steps on host and device.

    host     |launch 0|launch 1|launch 2|
    device       |work 0       |work 1       |work 2       |

The host's window lasts from the start of a marker to the start of the next one. The device's lasts
from the end of the last work of the step before to the end of the step's own last work. Both
partition time. In a steady state their means agree, wherever the host runs ahead.

Idle time before the first work comes from how a profile was recorded, except for the wait for its
batch: that is a part of the first iteration.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.host_activity import host_work
from tb_perfadvisor.signals.core.idle_gaps import device_gaps
from tb_perfadvisor.signals.core.steps.launched_work import LaunchedWork, owner_by_time
from tb_perfadvisor.signals.core.steps.marker_rows import MIN_REPEATS, Markers
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import overlap_ns
from tb_perfadvisor.trace.tables import Int64

AGREE_SHARE = 0.05
"""Means of the host's and the device's windows that differ by less are the same step time."""
_NEVER = np.iinfo(np.int64).min


class Side(Enum):
    """Whose windows are meant."""

    HOST = "host"
    DEVICE = "device"


class Windows(Struct, frozen=True):
    """The windows of all markers, in order. Columns of shape (markers,)."""

    host_start_ns: Int64
    host_end_ns: Int64
    device_start_ns: Int64
    """Those of the host if it is not known what the device did for which step."""
    device_end_ns: Int64
    is_linked: bool
    """Whether the host's and the device's windows are both known."""
    work_ns: Int64
    """Time of the work that each step launched, or of its operators on a CPU without XLA; 0 for all
    where that is not known."""
    head_ns: int = 0
    """Where the first step begins on a device that the host runs ahead of: without work before it,
    with its own first work, because in a steady state the work before would have ended there."""

    def decided_by(self, side: Side) -> Windows:
        """The windows if that side decides how long steps take."""
        if side is Side.HOST or not self.head_ns:
            return self
        start_ns = np.append(self.head_ns, self.device_start_ns[1:])
        return replace(self, device_start_ns=start_ns)

    def of(self, side: Side) -> tuple[Int64, Int64]:
        """Start and end of the windows of one side."""
        if side is Side.DEVICE:
            return self.device_start_ns, self.device_end_ns
        return self.host_start_ns, self.host_end_ns


def windows_of(
    trace: Trace, timeline: DeviceTimeline, markers: Markers, work: LaunchedWork
) -> Windows:
    """Both windows of each marker."""
    start_ns = markers.start_ns
    # A single step is its own work. Of several, each includes what runs before the next one.
    alone = markers.work_end_ns if len(start_ns) == 1 else None
    last_ns = markers.end_ns if alone is None else alone
    end_ns = np.append(start_ns[1:], last_ns[-1])
    if markers.is_on_device:
        return _launched_by_host(trace, timeline, start_ns, end_ns, work)
    if timeline.is_host_only and not len(work.rows):
        work_ns = overlap_ns(host_work(trace, markers.track), start_ns, end_ns)
        return Windows(start_ns, end_ns, start_ns, end_ns, False, work_ns)
    return _executed_by_device(trace, start_ns, end_ns, work)


def _executed_by_device(
    trace: Trace, start_ns: Int64, end_ns: Int64, work: LaunchedWork
) -> Windows:
    """The device's windows, from those of the host."""
    events, count = trace.events, len(start_ns)
    owner = owner_by_time(start_ns, end_ns, work.launched_ns)
    rows, owner_of_rows = work.rows[owner >= 0], owner[owner >= 0]
    duration_ns = events.duration_ns[rows].astype(np.float64)
    work_ns = np.bincount(owner_of_rows, weights=duration_ns, minlength=count).astype(np.int64)
    if not len(rows):
        return Windows(start_ns, end_ns, start_ns, end_ns, False, work_ns)
    last_ns = np.full(count, _NEVER)
    np.maximum.at(last_ns, owner_of_rows, events.end_ns[rows])
    first_ns = int(events.start_ns[rows].min())
    # Work of earlier steps, which ended before the first work of these.
    is_earlier = (events.start_ns[work.rows] < first_ns) & (work.launched_ns < start_ns[0])
    earlier = work.rows[is_earlier]
    begin_ns = int(start_ns[0])
    if len(earlier):
        begin_ns = min(max(int(events.end_ns[earlier].max()), begin_ns), first_ns)
    device_end_ns = np.maximum.accumulate(np.maximum(last_ns, begin_ns))
    device_start_ns = np.append(begin_ns, device_end_ns[:-1])
    head_ns = begin_ns if len(earlier) or count == 1 else first_ns
    return Windows(start_ns, end_ns, device_start_ns, device_end_ns, True, work_ns, head_ns)


def _launched_by_host(
    trace: Trace, timeline: DeviceTimeline, start_ns: Int64, end_ns: Int64, work: LaunchedWork
) -> Windows:
    """The host's windows, from those of the device: each begins with the first launch of a step."""
    events, count = trace.events, len(start_ns)
    owner = owner_by_time(start_ns, end_ns, events.start_ns[work.rows])
    own = owner >= 0
    duration_ns = events.duration_ns[work.rows[own]].astype(np.float64)
    work_ns = np.bincount(owner[own], weights=duration_ns, minlength=count).astype(np.int64)
    linked = own & (work.launched_ns >= 0)
    first_ns = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first_ns, owner[linked], work.launched_ns[linked])
    is_known = bool((first_ns[1:] > first_ns[:-1]).all()) and len(distinct(owner[linked])) == count
    if not is_known:
        return Windows(start_ns, end_ns, start_ns, end_ns, False, work_ns)
    # What the host does after its last launch belongs to the last step, as long as that runs.
    last_ns = max(int(work.launched_ns[linked].max()) + 1, int(end_ns[-1]))
    return Windows(first_ns, np.append(first_ns[1:], last_ns), start_ns, end_ns, True, work_ns)


class Pace(Struct, frozen=True):
    """How long steps take on both sides, and which side decides.

    The times are means over the same steps: from the end of the first one to the end of the last
    one, so that how far the host is ahead in the first one does not matter.
    """

    side: Side
    host_ns: float
    device_ns: float
    """At least `host_ns` if the device waits for the host."""

    @property
    def differ(self) -> bool:
        """Whether the sides take different times."""
        shorter, longer = sorted((self.host_ns, self.device_ns))
        return longer > (1 + AGREE_SHARE) * shorter


def pace_of(
    trace: Trace,
    timeline: DeviceTimeline,
    windows: Windows,
    used: slice,
    *,
    is_on_device: bool,
    has_end: bool,
) -> Pace:
    """How long steps take, and whose windows tell.

    The slower side decides, because the other one waits for it. Where a loop waits for the result
    of the step before, its first window on the host holds a dispatch and nothing else, so that the
    device's windows are the periods. If the host's windows are longer, it may also have waited for
    work of earlier steps. Then the device never waits for the host, and its windows count.

    `windows` are those of all markers, of which `used` count. `is_on_device` tells that the device
    marks the steps, `has_end` that it is known where the last one ends on the host.
    """
    host_end_ns, device_end_ns = windows.host_end_ns[used], windows.device_end_ns[used]
    # A device that is done before the host is waits for it.
    done_ns = device_end_ns if is_on_device else np.maximum(device_end_ns, host_end_ns)
    count = len(done_ns)
    if count == 1:
        host_ns = float(host_end_ns[0] - windows.host_start_ns[used][0])
        device_ns = float(done_ns[0] - windows.device_start_ns[used][0])
    else:
        last = count - (1 if has_end or count < MIN_REPEATS else 2)
        host_ns = float(host_end_ns[last] - host_end_ns[0]) / last
        device_ns = float(done_ns[last] - done_ns[0]) / last
    host = Pace(Side.HOST, host_ns, device_ns)
    device = Pace(Side.DEVICE, host_ns, device_ns)
    if is_on_device or not windows.is_linked:
        return device if is_on_device else host
    if not host.differ or device_ns > host_ns:
        return device if host.differ or _begins_with_dispatch(windows, used) else host
    if timeline.index is None or count < MIN_REPEATS:
        return host
    begin_ns, end_ns = int(windows.device_start_ns[used][0]), int(device_end_ns[-1])
    idle = device_gaps(trace, timeline, begin_ns, end_ns)
    starved_ns = int((idle.queued_from_ns - idle.start_ns).sum())
    return device if starved_ns <= AGREE_SHARE * (end_ns - begin_ns) else host


_DISPATCH_SHARE = 0.5
"""A first window with a smaller share of the others' median time holds no period of its work."""


def _begins_with_dispatch(windows: Windows, used: slice) -> bool:
    """Whether the first step takes the device as long as the others, and the host far less."""
    windows = windows.decided_by(Side.DEVICE)
    host_ns = (windows.host_end_ns - windows.host_start_ns)[used]
    device_ns = (windows.device_end_ns - windows.device_start_ns)[used]
    if len(host_ns) == 1:
        return False
    is_short = host_ns[0] < _DISPATCH_SHARE * float(np.median(host_ns[1:]))
    return bool(is_short and device_ns[0] >= _DISPATCH_SHARE * float(np.median(device_ns[1:])))


# torch/utils/data/dataloader.py: the loader with worker processes.
_PROCESSES = regex("_MultiProcessingDataLoaderIter")
_ALIKE = 1 / 3
"""A later fetch that takes this share of the first one shows that loading is slow each time."""


class FirstFetch(Struct, frozen=True):
    """A fetch that a thread waits for before it launches the first work."""

    row: int
    is_only: bool
    """Whether the thread fetches nothing later."""
    has_processes: bool
    """Whether processes load, which start with the first fetch."""


def fetch_before_work(trace: Trace, timeline: DeviceTimeline) -> FirstFetch | None:
    """The last fetch before the first work is launched; None if there is none.

    A first fetch that takes far longer than the later ones does not count: it is the loader's
    start, and the recording shows the program at work after it.
    """
    events = trace.events
    linked = timeline.rows[events.launched_by[timeline.rows] >= 0]
    if timeline.index is None or len(linked) == 0:
        return None
    launch = int(events.launched_by[linked[0]])
    fetches = trace.rows(EventKind.INPUT_WAIT)
    fetches = fetches[events.track[fetches] == events.track[launch]]
    before = fetches[events.end_ns[fetches] <= events.start_ns[launch]]
    if len(before) == 0:
        return None
    row = int(before[np.argmax(events.end_ns[before])])
    later = fetches[events.start_ns[fetches] > events.start_ns[launch]]
    longest_ns = int(events.duration_ns[later].max()) if len(later) else 0
    if len(later) and longest_ns < _ALIKE * int(events.duration_ns[row]):
        return None
    return FirstFetch(
        row, len(later) == 0, bool(_PROCESSES.search(trace.text(int(events.name[row]))))
    )
