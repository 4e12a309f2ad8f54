"""Loading and preparing batches on the host.

Worker processes hand each batch over, and they need cores: where the step's operators use all of
them, a worker takes what the step lacks. So a fetch must be long before workers pay; what waits for
storage needs no core. `cost_models/loader_workers.py` measures the constants.

Time that a step no longer waits for input may be waited elsewhere. The thread that loaded still has
to launch everything else, and is slower beside workers: their batches are handed over, unpickled
and pinned under its interpreter's lock, and they compete for caches, memory and clock rates.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.machine.facts import Made
from tb_perfadvisor.signals.core.causes import HOST_CAUSED, Cause
from tb_perfadvisor.signals.input.loader_workers import (
    fetches_without_workers,
    workers_to_keep_up,
)
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.soundness.waits import waiting_calls
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    contains,
    intersect,
    join,
    minus,
    overlap_ns,
    shared_ns,
    single,
    total_ns,
)
from tb_perfadvisor.trace.tables import Int32

_SHARED_HAND_OVER_NS = 3_500_000
"""What a batch costs beside a step that uses all cores: pickling, shared memory, and waking threads
that find their core taken. Eighteen loops of small and large steps on two cores, PyTorch 2.13: a
step and a fetch without workers take S + F, with two workers S + F / 2 + 0.13 F + 3.5 ms."""
_SHARED_HAND_OVER_LEAST_NS, _SHARED_HAND_OVER_MOST_NS = 1_000_000, 6_000_000
"""The least and the most of them."""
_HAND_OVER_NS = 1_400_000
"""What it costs beside idle cores: up to this in PyTorch's ResNet-50 samples."""
_SLOWER_SHARE = 0.13
"""How much longer a worker takes for a batch: it collates into shared memory."""
_UNKNOWN_CORES = 2
"""The least of machines that train; of unknown machines, the low end counts on it."""

IN_MEMORY = (0.5, 0.85, 1.0)
"""What is left out of a fetch that takes prepared samples from memory: indexing and stacking stay.
Five loops over images as bytes took 0.05 to 0.5 ms per batch then, of 1.3 to 3.5 ms."""
_AUGMENTED = (0.0, 0.35, 0.8)
"""The same if each sample is changed at random, which must stay."""
_UNKNOWN_SIZE_LOW = 0.2
"""The low end where nothing tells whether all samples fit."""
_UNKNOWN_SIZE = 0.5
"""How likely they do. Fetches of more than ten milliseconds read or decode what lies elsewhere."""
_MOST_OF_MEMORY = 0.25
"""Of the machine's memory, for prepared samples."""
_GROWS = 4
"""Samples that are stored as bytes are used as 32-bit numbers."""
_RANDOM = frozenset(
    f"aten::{name}" for name in ("rand", "randn", "randint", "uniform_", "normal_", "bernoulli_")
)


class Gain(Struct, frozen=True):
    """What a change saves of the used window; negative if it costs more than it brings."""

    low_ns: int
    expected_ns: int
    high_ns: int


class HostLoading(Struct, frozen=True):
    """Prices of the two ways not to load in the training thread."""

    workers: Gain
    memory: Gain | None
    """None if the samples are known not to fit."""
    is_sized: bool
    """Whether the samples are known to fit in memory."""
    is_augmented: bool
    """Whether samples are changed at random."""
    cores: float | None
    """That the process may use."""
    hand_over_ns: int
    """What taking over a batch costs, expected."""

    @property
    def best(self) -> Gain:
        """The gain of the better choice."""
        if self.memory is not None and self.keeps_in_memory:
            return self.memory
        return self.workers

    @property
    def keeps_in_memory(self) -> bool:
        """Whether samples in memory are the better choice."""
        if self.memory is None:
            return False
        certain = 1.0 if self.is_sized else _UNKNOWN_SIZE
        return certain * self.memory.expected_ns > self.workers.expected_ns


@memoized
def host_loading(signals: Signals) -> HostLoading | None:
    """The prices for a program on the CPU whose training thread loads; None for others."""
    rows = signals.steps.own(fetches_without_workers(signals))
    if not signals.device.is_host_only or not len(rows):
        return None
    events = signals.trace.events
    fetches = events.spans(rows)
    fetch_ns = shared_ns(signals.attribution.intervals[Cause.INPUT], fetches)
    machine = signals.trace.facts.machine
    loader = loader_in_process(signals)
    fits = _fits(loader, machine.usable_memory_bytes)
    is_augmented = _is_augmented(signals, rows)
    workers, hand_over_ns = _workers(signals, fetch_ns, len(rows))
    return HostLoading(
        workers=workers,
        memory=None if fits is False else _memory(fetch_ns, is_augmented, fits is True),
        is_sized=fits is True,
        is_augmented=is_augmented,
        cores=machine.usable_cores,
        hand_over_ns=hand_over_ns,
    )


def _workers(signals: Signals, fetch_ns: int, batches: int) -> tuple[Gain, int]:
    facts, rest_ns = signals.trace.facts, signals.attribution.window_ns - fetch_ns
    known = facts.machine.usable_cores
    cores = _UNKNOWN_CORES if known is None else known
    threads = cores if facts.threads.intra_op is None else facts.threads.intra_op
    if cores - threads >= 1:
        count = min(workers_to_keep_up(signals), int(cores - threads))
        loading_ns = fetch_ns * (1 + _SLOWER_SHARE) / count
        saved_ns = int(fetch_ns - max(loading_ns - rest_ns, 0))
        cost_ns = _HAND_OVER_NS * batches
        return Gain((saved_ns - 2 * cost_ns) // 2, saved_ns - cost_ns, fetch_ns), _HAND_OVER_NS
    # What waits for storage needs no core.
    waiting_ns = float(_certain_wait_ns(signals, fetch_ns, cores))
    computing_ns = fetch_ns - waiting_ns
    free_share = 1 - 1 / max(cores, 1) - _SLOWER_SHARE
    by_sharing_ns = waiting_ns + computing_ns * free_share
    expected_ns = by_sharing_ns - _SHARED_HAND_OVER_NS * batches
    low_ns = by_sharing_ns - _SHARED_HAND_OVER_MOST_NS * batches
    if known is None:  # or many cores are idle, or all of the fetch waits
        low_ns -= computing_ns * free_share / 2
        expected_ns = (expected_ns + fetch_ns - _HAND_OVER_NS * batches) / 2
    most_ns = fetch_ns - _SHARED_HAND_OVER_LEAST_NS * batches
    return Gain(int(low_ns), int(expected_ns), most_ns), _SHARED_HAND_OVER_NS


def _certain_wait_ns(signals: Signals, fetch_ns: int, cores: float) -> int:
    """The part of fetches in which not even the fetching thread computed.

    While a thread computes, at most all cores but one are idle.
    """
    load = signals.trace.facts.load
    if load is None or signals.trace.facts.machine.usable_cores is None:
        return 0
    idle_cores = load.idle * cores - max(cores - 1, 0)
    return int(min(max(idle_cores, 0) * signals.attribution.window_ns, fetch_ns))


def _memory(fetch_ns: int, is_augmented: bool, is_sized: bool) -> Gain:
    low, expected, high = _AUGMENTED if is_augmented else IN_MEMORY
    low = low if is_sized else min(low, _UNKNOWN_SIZE_LOW)
    return Gain(int(low * fetch_ns), int(expected * fetch_ns), int(high * fetch_ns))


def loader_in_process(signals: Signals) -> Made | None:
    """The loader of the training loop, if the recorder knows of one without workers.

    Among several, it is the one with most samples.
    """
    loaders = signals.trace.facts.program.all_made("loader")
    without = [made for made in loaders if made.facts.get("num_workers") == 0]
    return max(without, key=lambda made: made.number("samples"), default=None)


def _fits(loader: Made | None, memory_bytes: int | None) -> bool | None:
    """Whether prepared samples fit in memory; None if unknown."""
    size = 0 if loader is None else loader.number("dataset_bytes")
    if not size or memory_bytes is None:
        return None
    return _GROWS * size <= _MOST_OF_MEMORY * memory_bytes


def _is_augmented(signals: Signals, fetches: Int32) -> bool:
    """Whether fetches draw random numbers for their samples; a sampler draws once per epoch."""
    events, trace = signals.trace.events, signals.trace
    rows = trace.rows(EventKind.OPERATOR)
    known = [n for n in distinct(events.name[rows]).tolist() if trace.strings[n] in _RANDOM]
    rows = rows[is_in(events.name[rows], known)]
    inside = contains(events.spans(fetches), events.start_ns[rows])
    return int(inside.sum()) > 2 * len(fetches)


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
    fetches = intersect(events.spans(rows), window)
    loading_ns = total_ns(fetches)
    stall_ns = shared_ns(signals.attribution.intervals[Cause.INPUT], fetches)
    waits = waiting_calls(signals.trace)
    waits = waits[events.track[waits] == signals.step_track]
    waiting = events.spans(waits)
    host_ns = total_ns(minus(minus(window, fetches), waiting))
    handing_over_ns = _HAND_OVER_NS * len(rows)
    best_ns = max(window_ns - stall_ns, shared_ns(signals.device.busy, window))
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

    The training thread's own loading holds up the device for `stall_ns`; `low_ns` is the low end as
    far as the loader decides.
    """
    apart = loading_apart(signals)
    if apart is None:
        return low_ns, 0
    return min(low_ns, stall_ns - apart.most_elsewhere_ns), min(apart.elsewhere_ns, stall_ns)


def innermost_time(
    trace: Trace, rows: Int32, group: NDArray[np.signedinteger], groups: int
) -> list[Intervals]:
    """When the innermost event belongs to each group.

    `rows` are events of one thread, in order of start.
    """
    events = trace.events
    depth = np.zeros(len(rows), dtype=np.int64)
    is_among = np.zeros(len(events), dtype=bool)
    is_among[rows] = True
    ancestor = events.parent[rows]
    while (ancestor >= 0).any():
        depth += (ancestor >= 0) & is_among[ancestor]
        ancestor = np.where(ancestor >= 0, events.parent[ancestor], -1)
    parts: list[list[Intervals]] = [[EMPTY] for _ in range(groups)]
    deeper = EMPTY
    for level in range(int(depth.max(initial=-1)), -1, -1):
        is_level = depth == level
        for number in range(groups):
            chosen = rows[is_level & (group == number)]
            time = events.spans(chosen)
            parts[number].append(minus(time, deeper))
        level_rows = rows[is_level]
        deeper = join(deeper, events.spans(level_rows))
    return [join(*pieces) for pieces in parts]
