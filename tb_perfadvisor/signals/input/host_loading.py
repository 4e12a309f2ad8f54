"""What it brings on the CPU to load batches elsewhere, or to keep them in memory.

Worker processes hand each batch over, and they need cores: where the step's operators use all of
them, a worker takes what the step lacks. So a fetch must be long before workers pay; what waits for
storage needs no core. `cost_models/loader_workers.py` measures the constants.
"""

from __future__ import annotations

from msgspec import Struct

from tb_perfadvisor.machine.facts import Made
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.input.waiting_fetches import (
    fetches_without_workers,
    workers_to_keep_up,
)
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import contains, intersect, total_ns, union
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
    fetches = union(events.start_ns[rows], events.end_ns[rows])
    fetch_ns = total_ns(intersect(signals.attribution.intervals[Cause.INPUT], fetches))
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
    inside = contains(
        union(events.start_ns[fetches], events.end_ns[fetches]), events.start_ns[rows]
    )
    return int(inside.sum()) > 2 * len(fetches)
