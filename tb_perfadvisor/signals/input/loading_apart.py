"""What a step waits for once other processes load its batches: the device, the host or the loader.

Time that a step no longer waits for input may be waited elsewhere. The thread that loaded still has
to launch everything else, and is slower beside workers: their batches are handed over, unpickled
and pinned under its interpreter's lock, and they compete for caches, memory and clock rates.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.causes import HOST_CAUSED, Cause
from tb_perfadvisor.signals.input.waiting_fetches import (
    fetches_without_workers,
    workers_to_keep_up,
)
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.soundness.waits import waiting_calls
from tb_perfadvisor.trace.intervals import (
    intersect,
    minus,
    overlap_ns,
    single,
    total_ns,
    union,
)

_HAND_OVER_NS = 1_400_000
"""Taking over a batch from a worker: up to this in PyTorch's ResNet-50 samples."""
SLOWER_SHARE = 0.1
MOST_SLOWER_SHARE = 0.25
"""The host's own work takes 4 and 20 % longer beside four workers in PyTorch's two pairs of
ResNet-50 samples, recorded with no worker and with four."""

_WAITING_SHARE = 0.05
"""If the device waits for the host for a smaller share, the host is ahead nearly everywhere."""


class LoadingApart(Struct, frozen=True):
    """What remains of the used window, in the best case, as expected, and in the worst one."""

    best_ns: int
    expected_ns: int
    worst_ns: int

    @property
    def elsewhere_ns(self) -> int:
        """What is probably waited elsewhere instead."""
        return self.expected_ns - self.best_ns

    @property
    def most_elsewhere_ns(self) -> int:
        """What is waited elsewhere in the worst case."""
        return self.worst_ns - self.best_ns


@memoized
def loading_apart(signals: Signals) -> LoadingApart | None:
    """The used window if workers load; None if they do already, or if there is no device.

    It lasts as long as the slowest of three: the device's work and its waits for batches that are
    handed over, the host's work beside the workers, and loading by as many workers as are advised.
    In the worst case there is one of them. Where the device waits for the host already, what slows
    the host is added to the step in full.
    """
    rows = fetches_without_workers(signals)
    window_ns = signals.attribution.window_ns
    if signals.device.index is None or not len(rows) or not window_ns:
        return None
    events = signals.trace.events
    window = single(signals.attribution.window_start_ns, signals.attribution.window_end_ns)
    rows = rows[overlap_ns(window, events.start_ns[rows], events.end_ns[rows]) > 0]
    fetches = intersect(union(events.start_ns[rows], events.end_ns[rows]), window)
    loading_ns = total_ns(fetches)
    stall_ns = total_ns(intersect(signals.attribution.intervals[Cause.INPUT], fetches))
    waits = waiting_calls(signals.trace)
    waits = waits[events.track[waits] == signals.step_track]
    waiting = union(events.start_ns[waits], events.end_ns[waits])
    host_ns = total_ns(minus(minus(window, fetches), waiting))
    handing_over_ns = _HAND_OVER_NS * len(rows)
    best_ns = max(window_ns - stall_ns, total_ns(intersect(signals.device.busy, window)))
    # The device waits while it is handed a batch, unless it works for that long during the fetch.
    waited_ns = overlap_ns(
        signals.attribution.intervals[Cause.INPUT], events.start_ns[rows], events.end_ns[rows]
    )
    hidden_ns = events.duration_ns[rows] - waited_ns
    waiting_ns = int(np.clip(_HAND_OVER_NS - hidden_ns, 0, waited_ns).sum())

    # Where the device waits for the host already, whatever slows the host delays the device.
    idle_ns = signals.attribution.total_ns(*HOST_CAUSED)
    keeps_pace = idle_ns >= _WAITING_SHARE * best_ns

    def remaining_ns(slower_share: float, workers: int) -> int:
        by_host_ns = round(host_ns * (1 + slower_share)) + handing_over_ns
        if keeps_pace:
            by_host_ns = best_ns + round(host_ns * slower_share) + handing_over_ns
        # Nothing that happens elsewhere makes it longer than it is.
        return min(max(best_ns + waiting_ns, by_host_ns, loading_ns // workers), window_ns)

    return LoadingApart(
        best_ns,
        remaining_ns(SLOWER_SHARE, workers_to_keep_up(signals)),
        remaining_ns(MOST_SLOWER_SHARE, 1),
    )


def limited(signals: Signals, stall_ns: int, low_ns: int) -> tuple[int, int]:
    """The low end of what loading apart saves of a stall, and what is waited elsewhere instead.

    Args:
        signals: The worker's facts.
        stall_ns: How long the training thread's own loading holds up the device.
        low_ns: The low end as far as the loader decides.
    """
    apart = loading_apart(signals)
    if apart is None:
        return low_ns, 0
    return min(low_ns, stall_ns - apart.most_elsewhere_ns), min(apart.elsewhere_ns, stall_ns)
