"""The device's work, by kernel and by occupancy.

How well a kernel's blocks fill the device, and in how many waves they run.

A wave is the number of blocks that fit on all multiprocessors at once. With fewer blocks than
multiprocessors, some multiprocessors are idle. With slightly more than one wave, most of them are
idle during the second wave.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.host_activity import host_operations
from tb_perfadvisor.signals.core.operators import CallNodes, fold_calls, work_operators
from tb_perfadvisor.signals.core.origins import MODULE
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, KernelFamily
from tb_perfadvisor.trace.integer_groups import distinct, is_in, row_mask
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, clip, minus, overlap_ns
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Float64, Int32, Int64


@memoized
def work_rows(signals: Signals) -> Int32:
    """Rows of device work in the used window, in order of start.

    In a program of XLA on the CPU, the operations that it executes there.
    """
    events, window = signals.trace.events, signals.attribution
    rows = host_operations(signals.trace) if signals.device.is_host_only else signals.device.rows
    is_inside = events.start_ns[rows] < window.window_end_ns
    is_inside &= events.end_ns[rows] > window.window_start_ns
    inside: Int32 = rows[is_inside]
    return inside


@memoized
def kernel_families(signals: Signals) -> NDArray[np.uint8]:
    """`KernelFamily` of each of `work_rows`: `COPY` for copies, `OTHER` for other non-kernels."""
    trace, rows = signals.trace, work_rows(signals)
    families = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)
    work_families: NDArray[np.uint8] = families[rows]
    work_families[trace.events.kind[rows] == EventKind.COPY] = KernelFamily.COPY
    return work_families


@memoized
def launchers(signals: Signals) -> Int32:
    """The innermost operator that launched each of `work_rows`; -1 if unknown."""
    return operators_of(signals, work_rows(signals))


def operators_of(signals: Signals, rows: Int32) -> Int32:
    """The innermost operator whose work each device event does; -1 if unknown."""
    return work_operators(signals.trace, signals.launching_operator, rows)


def operator_around(signals: Signals, operators: Int32) -> Int32:
    """The operator around each operator; -1 for the outermost and for -1."""
    parent = np.where(operators >= 0, signals.trace.events.parent[operators], np.int32(-1))
    return np.where(parent >= 0, signals.launching_operator[parent], np.int32(-1))


def is_within(
    signals: Signals, operators: Int32, pattern: re.Pattern[str], kinds: Iterable[EventKind]
) -> NDArray[np.bool_]:
    """Whether operators are, or are inside, events of some kinds with a matching name.

    The result for -1 is false. `pattern` matches a name from its beginning.
    """
    events = signals.trace.events
    candidates = is_in(events.kind, list(kinds))
    names = distinct(events.name[candidates])
    texts = signals.trace.strings
    matches = (pattern.match(texts[name]) is not None for name in names.tolist())
    matching = names[np.fromiter(matches, bool, len(names))]
    is_marked = candidates & is_in(events.name, matching)
    inside = has_ancestor(events.parent, np.maximum(operators, 0), is_marked)
    inside |= is_marked[operators]
    return inside & (operators >= 0)


def exclusive_time(signals: Signals, rows: Int32) -> Intervals:
    """Time of the used window in which nothing runs on the device except these rows."""
    if len(rows) == 0:
        return EMPTY
    events, window, work = signals.trace.events, signals.attribution, work_rows(signals)
    time = events.spans(rows)
    time = clip(time, window.window_start_ns, window.window_end_ns)
    if _run_alone(signals, rows):
        return time
    counted = row_mask(len(events), rows) | _around(events.parent, rows)
    other_rows = work[~counted[work]]
    return minus(time, events.spans(other_rows))


def _around(parent: Int32, rows: Int32) -> NDArray[np.bool_]:
    """Which events enclose some rows on their threads, as loops do their bodies; shape (events,).

    What a thread does inside a loop is not beside the loop.
    """
    around = np.zeros(len(parent), dtype=bool)
    above = parent[rows]
    while len(above):
        above = distinct(above[above >= 0])
        above = above[~around[above]]
        around[above] = True
        above = parent[above]
    return around


def exclusive_time_of_each(signals: Signals, rows: Int32, exclusive: Intervals) -> Int64:
    """The part of the rows' `exclusive_time` that each row takes; shape (n,)."""
    events, window = signals.trace.events, signals.attribution
    if not _run_alone(signals, rows):
        return time_within(signals, rows, exclusive)
    clipped_ns: Int64 = np.minimum(events.end_ns[rows], window.window_end_ns)
    clipped_ns -= np.maximum(events.start_ns[rows], window.window_start_ns)
    return clipped_ns


def _run_alone(signals: Signals, rows: Int32) -> bool:
    """Whether these rows are work of a device that never runs two events at the same time."""
    return _is_sequential(signals) and bool(_is_work(signals)[rows].all())


@memoized
def _is_work(signals: Signals) -> NDArray[np.bool_]:
    """Which events are among `work_rows`; shape (events,)."""
    return row_mask(len(signals.trace.events), work_rows(signals))


@memoized
def _is_sequential(signals: Signals) -> bool:
    """Whether no two of `work_rows` run at the same time, as on the core of a TPU."""
    events, rows = signals.trace.events, work_rows(signals)
    return bool((events.start_ns[rows[1:]] >= events.end_ns[rows[:-1]]).all())


def time_within(signals: Signals, rows: Int32, intervals: Intervals) -> Int64:
    """Overlap of each event with some intervals; shape (n,)."""
    events = signals.trace.events
    return overlap_ns(intervals, events.start_ns[rows], events.end_ns[rows])


class KernelTree(Struct, frozen=True):
    """The work of the busiest device by where it comes from."""

    nodes: CallNodes
    """Names index `names`; examples are rows of device events below the node."""
    names: tuple[str, ...]
    shows_modules: bool
    """Whether modules or named ranges are known of anything."""


class Paths:
    """Paths of names, each prefix once."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.parent: list[int] = []
        self.name: list[int] = []
        self._place_of: dict[tuple[int, int], int] = {}

    def below(self, parent: int, name: str) -> int:
        """The path that ends with a name after another path; -1 is the empty one."""
        key = parent, self.names.setdefault(name, len(self.names))
        if key not in self._place_of:
            self._place_of[key] = len(self.parent)
            self.parent.append(parent)
            self.name.append(key[1])
        return self._place_of[key]

    def parts(self, path: int) -> tuple[str, ...]:
        """The names of a path, the outermost first."""
        names, found = tuple(self.names), []
        while path >= 0:
            found.append(names[self.name[path]])
            path = self.parent[path]
        return tuple(reversed(found))


@memoized
def kernel_tree(signals: Signals) -> KernelTree | None:
    """The device's work in the used steps, by module, operator and kernel; None without any."""
    trace = signals.trace
    events = trace.events
    rows = signals.steps.own(signals.device.rows)
    if not rows.size:
        return None
    paths = Paths()
    module = module_paths(signals, rows, paths)
    operator = work_operators(trace, signals.launching_operator, rows)
    is_named = (operator >= 0) & (trace.operations(rows) < 0)
    operator_name = np.where(is_named, events.name[operator], -1)
    # Paths are made once for each kind of origin, not for each kernel.
    keys = np.column_stack((module, operator_name, events.name[rows]))
    unique, group = np.unique(keys, axis=0, return_inverse=True)
    leaf = np.zeros(len(unique), dtype=np.int64)
    is_scoped = trace.source.framework == "tensorflow"
    for place, (path, launcher, name) in enumerate(unique.tolist()):
        if launcher >= 0:
            text = trace.strings[launcher]
            path = paths.below(path, text.rpartition("/")[2] if is_scoped else text)
        leaf[place] = paths.below(path, trace.strings[name])
    return KernelTree(
        nodes=_nodes(paths, leaf[group.reshape(-1)], events.duration_ns[rows], rows),
        names=tuple(paths.names),
        shows_modules=bool((module >= 0).any()),
    )


def module_paths(signals: Signals, rows: Int32, paths: Paths) -> Int64:
    """The path of modules around the work of some events, shape (n,); -1 if unknown.

    A kernel of PyTorch lies below the modules around the operator that launched it, in the backward
    pass below those of its forward operator; work of XLA and TensorFlow below the scopes in the
    name that the framework gave it. Without these, a kernel lies below the named ranges around its
    launch. An operator on the host takes the place of a kernel if there is no device.
    """
    trace = signals.trace
    events = trace.events
    operation = trace.operations(rows)
    scope = signals.origins.scope[rows]
    call = rows if signals.device.is_host_only else events.launched_by[rows]
    within = nearest(events.parent, events.kind == EventKind.ANNOTATION)[call]
    within[(call < 0) | (scope >= 0) | (operation >= 0)] = -1
    scoped = np.full(len(rows), -1)
    if trace.source.framework == "tensorflow":
        operator = np.where(call >= 0, signals.launching_operator[call], -1)
        scoped = np.where(operator >= 0, events.name[operator], -1)
    keys = np.column_stack((operation, scope, scoped, within))
    unique, group = np.unique(keys, axis=0, return_inverse=True)
    found = np.full(len(unique), -1, dtype=np.int64)
    of_scope: dict[int, int] = {}
    of_range: dict[int, int] = {}
    for place, (op, at, named, inside) in enumerate(unique.tolist()):
        path = _scope_path(paths, trace.text(int(trace.hlo.path[op]))) if op >= 0 else -1
        if path < 0 and named >= 0:
            path = _scope_path(paths, trace.strings[named].partition(":")[0])
        if path < 0 and at >= 0:
            path = _module_path(signals, paths, at, of_scope)
        if path < 0 and inside >= 0:
            path = _range_path(signals, paths, inside, of_range)
        found[place] = path
    return found[group.reshape(-1)]


_CALL = "StatefulPartitionedCall"
"""What TensorFlow puts before the names of a function's operators."""


def _scope_path(paths: Paths, name: str) -> int:
    """The path of the scopes in the name of an operation: all of its parts but the last."""
    path = -1
    for part in name.split("/")[:-1]:
        if part != _CALL:
            path = paths.below(path, part)
    return path


_COUNT = "0123456789 _#:()[]"
"""What the number of an iteration consists of, at the end of the name of its range."""


def _range_path(signals: Signals, paths: Paths, row: int, known: dict[int, int]) -> int:
    """The path of a named range: the ranges around it, and itself, without numbers."""
    if row not in known:
        trace, above = signals.trace, int(signals.trace.events.parent[row])
        while above >= 0 and trace.events.kind[above] != EventKind.ANNOTATION:
            above = int(trace.events.parent[above])
        outer = _range_path(signals, paths, above, known) if above >= 0 else -1
        name = trace.name(row)
        known[row] = paths.below(outer, name.rstrip(_COUNT) or name)
    return known[row]


def _module_path(signals: Signals, paths: Paths, scope: int, known: dict[int, int]) -> int:
    """The path of a module's range: the modules around it, and itself."""
    trace, parent = signals.trace, signals.trace.events.parent
    around = []
    row = scope
    while row >= 0 and row not in known:
        if trace.name(row).startswith(MODULE):
            around.append(row)
        row = int(parent[row])
    path = known.get(row, -1)
    for row in reversed(around):
        path = known[row] = paths.below(path, trace.name(row).removeprefix(MODULE))
    return path


def _nodes(paths: Paths, leaf: Int64, duration_ns: Int64, rows: Int32) -> CallNodes:
    """The nodes of all paths, with the work at the leaves."""
    count = len(paths.parent)
    own_ns = np.bincount(leaf, weights=duration_ns, minlength=count).astype(np.int64)
    calls = np.bincount(leaf, minlength=count)
    example = np.full(count, -1, dtype=np.int64)
    example[leaf[::-1]] = rows[::-1]
    parent = np.array(paths.parent, dtype=np.int64)
    nodes, node = fold_calls(parent, np.array(paths.name, dtype=np.int64), own_ns)
    number = np.zeros(len(nodes), dtype=np.int64)
    number[node] = calls
    shown = np.full(len(nodes), -1, dtype=np.int64)
    shown[node] = example
    for place in range(len(nodes) - 1, -1, -1):
        above = nodes.parent[place]
        if above >= 0:
            number[above] += number[place]
            shown[above] = max(shown[above], shown[place])
    return CallNodes(
        parent=nodes.parent,
        name=nodes.name,
        count=number,
        self_ns=nodes.self_ns,
        total_ns=nodes.total_ns,
        example=shown,
    )


_WARPS: Final = {
    "7.0": 64, "7.5": 32, "8.0": 64, "8.6": 48, "8.9": 48, "9.0": 64, "10.0": 64, "12.0": 48,
}  # fmt: skip
"""Resident warps on a multiprocessor (NVIDIA, CUDA C++ programming guide, technical
specifications per compute capability)."""
_WARP_THREADS: Final = 32


class Occupancy(Struct, frozen=True):
    """Kernels of the used window with a known grid; columns of shape (n,)."""

    rows: Int32
    blocks: Int64
    waves: Float64
    """Number of waves; below 1 if the blocks do not fill the device. NaN if there is more than one
    block per multiprocessor and it is unknown how many fit."""
    filled_share: Float64
    """Share of the multiprocessors' time in which they have blocks to run."""


@memoized
def occupancy(signals: Signals) -> Occupancy | None:
    """How kernels fill the device; None if its number of multiprocessors is unknown."""
    facts, trace = signals.device_facts, signals.trace
    if facts is None or not facts.multiprocessors:
        return None
    rows = work_rows(signals)
    rows = rows[trace.events.kind[rows] == EventKind.KERNEL]
    table = trace.kernels
    blocks = trace.by_event(table.row, table.grid_blocks, -1)[rows]
    rows, blocks = rows[blocks > 0], blocks[blocks > 0]
    threads = trace.by_event(table.row, table.block_threads, -1)[rows]
    share = np.full(len(trace.events), np.nan)
    share[table.row] = table.occupancy_share
    per_processor = blocks / facts.multiprocessors
    resident = _resident_blocks(share[rows], threads, per_processor, facts.architecture)
    waves = np.where(per_processor <= 1, per_processor, per_processor / resident)
    with np.errstate(invalid="ignore"):
        filled = np.where(per_processor <= 1, per_processor, waves / np.ceil(waves))
        # A single wave of more than one block per multiprocessor uses all of them.
        filled = np.where((per_processor > 1) & (waves <= 1), 1.0, filled)
    return Occupancy(rows, blocks, waves, filled)


def _resident_blocks(
    share: Float64, threads: Int32, per_processor: Float64, architecture: str
) -> Float64:
    """Blocks that run on a multiprocessor at once; NaN if unknown.

    The recorded occupancy (in whole percent) is the share of resident warps, for at most as many
    blocks as there are per multiprocessor. Only if there are more does it tell how many fit.
    """
    max_blocks = _WARPS.get(architecture, np.nan) / np.maximum(-(-threads // _WARP_THREADS), 1)
    recorded = share * max_blocks
    is_limited = per_processor - recorded > 0.05 * per_processor + 0.005 * max_blocks
    # If all blocks fit, they run in one wave.
    resident = np.where(is_limited, np.maximum(np.rint(recorded), 1.0), np.ceil(per_processor))
    return np.where((threads > 0) & ~np.isnan(recorded), resident, np.nan)


_OF_PEAK = ".pct_of_peak_sustained"
_LABELS = (
    (regex("sm__warps_active"), "Achieved occupancy"),
    (regex("dram__(?:throughput|bytes|read|write)"), "Memory bandwidth"),
    (regex("sm__(?:inst_executed_)?pipe_tensor"), "Tensor cores"),
    (regex("sm__throughput"), "Multiprocessors"),
)
"""What people call the counters (NVIDIA, "Nsight Compute: Metrics Reference")."""
_FILLED = 0.5
"""Of a sample that belongs to some kernels for less of its time, other work decides."""


class CounterMean(Struct, frozen=True):
    """The mean of a counter over the samples of some kernels."""

    metric: str
    label: str
    """Empty if people have no name for it."""
    share: float
    """Of the device's peak."""
    samples: int


def counters_while(signals: Signals, rows: Int32) -> tuple[CounterMean, ...]:
    """The counters of the device while some of its work ran; none if they were not sampled."""
    trace, table = signals.trace, signals.trace.counters
    busy = trace.events.spans(rows)
    found = []
    for metric in distinct(table.metric[table.device == (signals.device.index or 0)]).tolist():
        name = trace.text(metric)
        chosen = (table.metric == metric) & (table.device == (signals.device.index or 0))
        start_ns, value = table.at_ns[chosen], table.value[chosen]
        if _OF_PEAK not in name or len(start_ns) < 2:
            continue
        length_ns = np.diff(start_ns)
        # Nothing tells when the last sample ends, and a pause is no long sample.
        length_ns = np.minimum(length_ns, 2 * int(np.median(length_ns)))
        start_ns, value = start_ns[:-1], value[:-1]
        inside_ns = overlap_ns(busy, start_ns, start_ns + length_ns)
        counts = inside_ns >= np.maximum(_FILLED * length_ns, 1)
        if counts.any():
            share = float(np.average(value[counts], weights=inside_ns[counts])) / 100
            label = next((each for pattern, each in _LABELS if pattern.match(name)), "")
            found.append(CounterMean(name, label, share, int(counts.sum())))
    return tuple(sorted(found, key=lambda each: (not each.label, each.label, each.metric)))
