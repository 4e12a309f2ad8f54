"""The kernels view: kernels on the device's roofline, and how close they come to it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.work.roofline import (
    BOUNDS,
    LATENCY_BOUND,
    NUMBER_FORMATS,
    roofline,
)
from tb_perfadvisor.trace import EventKind, KernelFamily, Trace
from tb_perfadvisor.trace.integer_groups import group_rows, unique_inverse
from tb_perfadvisor.trace.tables import Int32, Int64

MAX_POINTS = 200
"""Only the costliest kernels would be visible on a chart."""
MAX_GROUPS = 100


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """The device's peak rate in one number format."""

    format: str
    """fp64, fp32, tf32, fp16, bf16, fp8 or int8."""
    peak_flop_per_s: float
    achievable_flop_per_s: float


class KernelPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel with one launching operator and one problem size, over the used window."""

    name: str
    family: str
    operator: str | None
    product: list[int] | None
    """Batch, m, n and k of a matrix product, or of a convolution seen as one."""
    format: str | None
    tensor_cores: bool | None
    count: int
    total_ns: int
    share: float
    """Of the time of all kernels."""
    flop: float | None
    """In total."""
    traffic_bytes: float | None
    """The least traffic that its work needs, in total."""
    flop_per_byte: float | None
    flop_per_s: float | None
    bytes_per_s: float | None
    achievable_ns: int | None
    """Its duration at the rates that large, well-shaped kernels reach."""
    achieved_share: float | None
    """Of the achievable rate, at most 1. None if its start limits a kernel, or if a rate would
    exceed the peak: its operands then come from caches, or it does less than is known."""
    bound: str | None
    """compute, memory or latency."""
    occupancy_share: float | None
    longest_start_ns: int
    """Start of the longest execution."""
    longest_ns: int


class KernelGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels of one family, operator or module, over the used window."""

    name: str | None
    """None if it is unknown."""
    kernels: int
    """How many kernels there are: distinct names."""
    count: int
    total_ns: int
    share: float
    """Of the time of all kernels."""


class KernelsView(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of the used window, the costliest first, and the device's roofs."""

    device: str
    roofs: list[Roof]
    """Empty if the device's peaks are unknown."""
    peak_bytes_per_s: float | None
    achievable_bytes_per_s: float | None
    known_share: float
    """Share of kernel time in kernels whose work is known."""
    points: list[KernelPoint]
    truncated: int
    families: list[KernelGroup]
    operators: list[KernelGroup]
    """The costliest of them, and a group of the kernels without an operator."""
    modules: list[KernelGroup]
    """The costliest of them, and a group of the kernels without a module; empty without modules."""


def make_kernels_view(signals: Signals, most_rows: int = MAX_POINTS) -> KernelsView | None:
    """The kernels of the busiest device; None without any."""
    facts, found, trace = signals.device_facts, roofline(signals), signals.trace
    events, window = trace.events, signals.attribution
    is_own = events.kind[found.rows] == EventKind.KERNEL
    is_own &= events.start_ns[found.rows] < window.window_end_ns
    is_own &= events.end_ns[found.rows] > window.window_start_ns
    entry = np.flatnonzero(is_own)
    if facts is None or not entry.size or trace.totals is not None:
        return None
    rows, peaks = found.rows[entry], facts.peaks
    duration_ns = np.minimum(events.end_ns[rows], window.window_end_ns)
    duration_ns = duration_ns - np.maximum(events.start_ns[rows], window.window_start_ns)
    operator = found.operator[entry]
    operator_name = np.where(operator >= 0, events.name[operator], -1)
    _, group = group_rows(
        events.name[rows], operator_name, found.number_format[entry], found.product[entry]
    )
    table = trace.kernels
    slot_of = trace.by_event(table.row, np.arange(len(table.row), dtype=np.int32), -1)
    members = entry[np.argsort(group, kind="stable")]
    bounds = np.searchsorted(np.sort(group), np.arange(group.max() + 2)).tolist()
    total_ns = np.bincount(group, weights=duration_ns).astype(np.int64)
    all_ns = int(total_ns.sum())
    points = [
        _point(signals, slot_of, members[bounds[i] : bounds[i + 1]], int(total_ns[i]), all_ns)
        for i in np.argsort(-total_ns, kind="stable")[:most_rows].tolist()
    ]
    bandwidth = peaks.memory_bandwidth_bytes_per_s if peaks else None
    known_ns = int(duration_ns[~np.isnan(found.flop[entry])].sum())
    return KernelsView(
        device=facts.name,
        roofs=_roofs(peaks),
        peak_bytes_per_s=bandwidth,
        achievable_bytes_per_s=bandwidth * peaks.achievable_bandwidth
        if peaks and bandwidth
        else None,
        known_share=known_ns / all_ns if all_ns else 0.0,
        points=points,
        truncated=max(len(total_ns) - most_rows, 0),
        families=_groups(trace, rows, duration_ns, _families(trace, slot_of[rows])),
        operators=_groups(trace, rows, duration_ns, (operator_name, trace.strings)),
        modules=_groups(
            trace, rows, duration_ns, (signals.origins.module[rows], signals.origins.names)
        )
        if signals.origins.names
        else [],
    )


def _families(trace: Trace, slot: Int32) -> tuple[Int32, Sequence[str]]:
    """The family of each kernel as an index into names."""
    family = np.where(slot >= 0, trace.kernels.family[slot], int(KernelFamily.OTHER))
    return family.astype(np.int32), [family.name.lower() for family in KernelFamily]


def _groups(
    trace: Trace, rows: Int32, duration_ns: Int64, label: tuple[Int32, Sequence[str]]
) -> list[KernelGroup]:
    """Kernels by a label, the costliest group first.

    `rows` are executions with their time in the window, and `label` has an index into names, or
    -1; all of shape (n,).
    """
    index, names = label
    labels, group = unique_inverse(index)
    total_ns = np.bincount(group, weights=duration_ns).astype(np.int64)
    count = np.bincount(group)
    pairs, _ = group_rows(group, trace.events.name[rows])
    kernels = np.bincount(group[pairs], minlength=len(labels))
    all_ns = int(total_ns.sum())
    return [
        KernelGroup(
            name=names[labels[i]] if labels[i] >= 0 else None,
            kernels=int(kernels[i]),
            count=int(count[i]),
            total_ns=int(total_ns[i]),
            share=int(total_ns[i]) / all_ns if all_ns else 0.0,
        )
        for i in np.argsort(-total_ns, kind="stable")[:MAX_GROUPS].tolist()
    ]


def _roofs(peaks: Peaks | None) -> list[Roof]:
    rates = [
        (form, peaks.flop_per_s(form, tensor=form != "fp32") if peaks else None)
        for form in NUMBER_FORMATS[1:]
    ]
    return [
        Roof(
            format=form,
            peak_flop_per_s=rate,
            achievable_flop_per_s=rate * peaks.achievable,
        )
        for form, rate in rates
        if rate is not None and peaks is not None
    ]


def _point(
    signals: Signals, slot_of: Int32, entry: Int64, total_ns: int, all_ns: int
) -> KernelPoint:
    """One group of executions.

    `slot_of` has the row of the `KernelTable` of each event, or -1. `total_ns` is the time of the
    entries in the window, and `all_ns` that of all kernels.
    """
    found = roofline(signals)
    trace, table = signals.trace, signals.trace.kernels
    rows, first = found.rows[entry], int(entry[0])
    row = int(rows[0])
    slots = slot_of[rows]
    slots = slots[slots >= 0]
    used = int(table.tensor_cores[slots[0]]) if slots.size else -1
    family = int(table.family[slots[0]]) if slots.size else int(KernelFamily.OTHER)
    known = table.occupancy_share[slots]
    known = known[~np.isnan(known)]
    flop, traffic = float(found.flop[entry].sum()), float(found.traffic_bytes[entry].sum())
    achievable_ns = float(found.achievable_ns[entry].sum())
    longest = int(rows[np.argmax(trace.events.duration_ns[rows])])
    whole_ns = int(trace.events.duration_ns[rows].sum())
    bound = int(found.bound[first])
    flop_per_s, bytes_per_s = flop / max(whole_ns, 1) * 1e9, traffic / max(whole_ns, 1) * 1e9
    is_possible = _is_possible(signals, int(found.number_format[first]), flop_per_s, bytes_per_s)
    is_work = not np.isnan(flop)
    is_rated = is_work and whole_ns > 0 and is_possible
    is_placed = not np.isnan(achievable_ns) and whole_ns > 0 and is_possible
    operator = int(found.operator[first])
    product = found.sizes_of(first).tolist()
    return KernelPoint(
        name=trace.name(row),
        family=KernelFamily(family).name.lower(),
        operator=trace.name(operator) if operator >= 0 else None,
        product=product if product[0] else None,
        format=NUMBER_FORMATS[int(found.number_format[first])] or None,
        tensor_cores=None if used < 0 else bool(used),
        count=len(entry),
        total_ns=total_ns,
        share=total_ns / all_ns if all_ns else 0.0,
        flop=flop if is_work else None,
        traffic_bytes=traffic if is_work and is_possible else None,
        flop_per_byte=flop / traffic if is_work and is_possible and traffic else None,
        flop_per_s=flop_per_s if is_rated else None,
        bytes_per_s=bytes_per_s if is_rated else None,
        achievable_ns=round(achievable_ns) if is_placed else None,
        achieved_share=min(achievable_ns / whole_ns, 1.0)
        if is_placed and bound != LATENCY_BOUND
        else None,
        bound=BOUNDS.get(bound) if is_possible else None,
        occupancy_share=float(known.mean()) if known.size else None,
        longest_start_ns=int(trace.events.start_ns[longest]),
        longest_ns=int(trace.events.duration_ns[longest]),
    )


def _is_possible(
    signals: Signals, number_format: int, flop_per_s: float, bytes_per_s: float
) -> bool:
    """Whether the device can reach these rates, so that what a kernel does may be known."""
    facts = signals.device_facts
    peaks = facts.peaks if facts is not None else None
    if peaks is None:
        return True
    form = NUMBER_FORMATS[number_format]
    most_flop_per_s = peaks.flop_per_s(form, tensor=True) if form else None
    most_bytes_per_s = peaks.memory_bandwidth_bytes_per_s
    return not (
        (most_flop_per_s is not None and flop_per_s > most_flop_per_s)
        or (most_bytes_per_s is not None and bytes_per_s > most_bytes_per_s)
    )
