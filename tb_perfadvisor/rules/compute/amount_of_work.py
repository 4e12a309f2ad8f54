"""Work that could be less, or more at a time."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.device_work import costly_work
from tb_perfadvisor.rules.evidence.tables import batches_table
from tb_perfadvisor.rules.finding import (
    Cell,
    Column,
    Events,
    Finding,
    LargerBatch,
    Saving,
    Table,
    costliest,
)
from tb_perfadvisor.rules.savings import at_best_also, faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.device.memory_use import ROOM_SHARE
from tb_perfadvisor.signals.device.recomputation import (
    Recomputation,
    recomputation,
    recomputed_bytes,
)
from tb_perfadvisor.signals.program.updates import most_occupied_bytes
from tb_perfadvisor.signals.serving.decode import captured_sizes
from tb_perfadvisor.signals.serving.server_steps import Mask, ServerSteps, server_steps
from tb_perfadvisor.signals.tpu.partial_recomputation import partial_recomputation
from tb_perfadvisor.trace.integer_groups import group_rows
from tb_perfadvisor.trace.intervals import Intervals, clip, intersect, total_ns, union
from tb_perfadvisor.trace.tables import Float64, Int64
from tb_perfadvisor.units import format_bytes, format_share

_REMOVED_SHARE = 0.5
"""Part of the padding's time that finer sizes save: some padding remains, and kernels get faster in
steps of whole tiles."""


class PaddedGraphBatch(Rule):
    """Decode steps are padded to the size of a GPU graph that was recorded for a larger batch."""

    id = "padded-graph-batch"
    title = "Record graphs for the batch sizes that occur"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS)

    minimum_share = Limit(0.02, "share", "Less is not worth the memory of more graphs.")
    minimum_padding = Limit(
        0.15, "share", "Servers record sizes in steps of 8 or 16, so that some padding is normal."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        steps = server_steps(signals)
        if steps is None:
            return
        size = captured_sizes(signals)
        known = steps.is_kind(StepKind.DECODE) & (size > 0) & (steps.decode_requests > 0)
        slope_ns = _time_per_request(size[known], steps.device_ns[known])
        missing = np.where(known, size - steps.decode_requests, 0)
        padded = known & (missing >= self.minimum_padding * size)
        if slope_ns is None or not padded.any():
            return
        claims = _graph_time(signals, steps, padded)
        high = min(round(slope_ns * int(missing[padded].sum())), total_ns(claims))
        if self.is_minor(high, signals):
            return
        share = missing[padded].sum() / size[padded].sum()
        of_all = f"{int(padded.sum()):,} of {int(known.sum()):,} decode steps"
        yield Finding(
            instance=of_all,
            summary=(
                f"{of_all} run in GPU graphs of larger batches: {format_share(float(share))} of the"
                f" requests that they compute are padding, which takes up to"
                f" {per_step(high, signals)}."
            ),
            saving=Saving(0, round(_REMOVED_SHARE * high), high, claims, "heuristic"),
            evidence=(
                _table(steps, size, known),
                costliest(
                    "Padded decode steps",
                    signals.worker,
                    steps.row[padded],
                    np.rint(slope_ns * missing[padded]).astype(np.int64),
                ),
            ),
            remedies=advise("graph-sizes"),
        )


def _time_per_request(size: Int64, device_ns: Int64) -> float | None:
    """By how much larger graphs take longer, per request; None if that is not seen."""
    sizes, place = np.unique(size, return_inverse=True)
    if len(sizes) < 2:
        return None
    typical_ns = [float(np.median(device_ns[place == number])) for number in range(len(sizes))]
    slope_ns = float(np.polyfit(sizes, typical_ns, 1)[0])
    return slope_ns if slope_ns > 0 else None


def _graph_time(signals: Signals, steps: ServerSteps, chosen: Mask) -> Intervals:
    """When the device works on some steps, in the used window."""
    window = signals.attribution
    spans = union(steps.first_ns[chosen], steps.last_ns[chosen])
    busy = intersect(signals.device.busy, spans)
    return clip(busy, window.window_start_ns, window.window_end_ns)


def _table(steps: ServerSteps, size: Int64, known: Mask) -> Table:
    places = np.flatnonzero(known)
    first, group = group_rows(size[places], steps.decode_requests[places])
    order = np.lexsort((steps.decode_requests[places[first]], size[places[first]]))
    rows: list[tuple[Cell, ...]] = []
    for number in order.tolist():
        members = places[group == number]
        rows.append(
            (
                int(size[members[0]]),
                int(steps.decode_requests[members[0]]),
                len(members),
                round(float(steps.device_ns[members].mean())),
            )
        )
    return Table(
        "Decode steps by the size of their graph",
        (
            Column("size", "Graph for at least", "count"),
            Column("requests", "Requests", "count"),
            Column("steps", "Steps", "count"),
            Column("device_ns", "Device", "ns"),
        ),
        tuple(rows),
    )


_LEAST_SPREAD = 1.5
"""The largest batch over the smallest one: with less, the slope is noise."""
_STANDARD_ERRORS = 2.0


class SmallDecodeBatch(Rule):
    """Decode steps take hardly longer for more requests, so more of them would be almost free."""

    id = "small-decode-batch"
    title = "Decode more requests in each step"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS, Need.PEAKS)

    minimum_steps = 8
    """A line through fewer steps says little."""
    minimum_fixed_share = Limit(
        0.5, "share", "If most of the step grows with the requests, more of them make it longer."
    )
    maximum_compute_share = 0.5
    """Close to the limit of the arithmetic units, more requests take longer."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        steps = server_steps(signals)
        if steps is None or not steps.is_periodic:
            return
        decodes = steps.is_kind(StepKind.DECODE) & (steps.decode_requests > 0)
        # Launching takes time of its own: compare steps that do it in the same way.
        replays = steps.graphs > 0
        decodes &= replays == (2 * (decodes & replays).sum() >= decodes.sum())
        if decodes.sum() < self.minimum_steps:
            return
        requests = steps.decode_requests[decodes].astype(float)
        if requests.max() < _LEAST_SPREAD * requests.min():
            return
        line = _fit(requests, steps.period_ns[decodes].astype(float))
        rows = round(float(requests.mean()))
        if line.fixed_share(_STANDARD_ERRORS) < self.minimum_fixed_share:
            return
        if 2 * rows / _rows_at_ridge(signals) > self.maximum_compute_share:
            return
        batch = LargerBatch(
            rows,
            2 * rows,
            # Twice the requests share the fixed part.
            low_share=line.fixed_share(_STANDARD_ERRORS) / 2,
            expected_share=line.fixed_share(0) / 2,
            high_share=line.fixed_share(-_STANDARD_ERRORS) / 2,
        )
        yield Finding(
            instance=f"{rows:,} requests per step",
            summary=(
                f"{format_share(line.fixed_share(0))} of a decode step's time does not depend on"
                f" its requests, of which there are {int(requests.min()):,} to"
                f" {int(requests.max()):,}. With twice as many, each token would take"
                f" {format_share(batch.expected_share)} less time"
                f" ({format_share(batch.low_share)} to {format_share(batch.high_share)})."
            ),
            severity="low",
            larger_batch=batch,
            evidence=(
                batches_table(steps, decodes),
                costliest(
                    "Longest decode steps",
                    signals.worker,
                    steps.row[decodes],
                    steps.period_ns[decodes],
                ),
            ),
            remedies=advise("larger-batch", "larger-decode-batch"),
        )


class _Line(Struct, frozen=True):
    """Time over requests, by least squares."""

    mean_requests: float
    mean_ns: float
    slope_ns: float
    standard_error_ns: float

    def fixed_share(self, errors: float) -> float:
        """Share of the mean step that does not depend on the requests.

        The slope counts as larger by `errors` standard errors.
        """
        slope_ns = max(self.slope_ns + errors * self.standard_error_ns, 0.0)
        return max(1 - slope_ns * self.mean_requests / self.mean_ns, 0.0)


def _fit(requests: Float64, time_ns: Float64) -> _Line:
    spread = requests - requests.mean()
    variance = float((spread**2).sum())
    slope = float((spread * time_ns).sum()) / variance
    rest = time_ns - time_ns.mean() - slope * spread
    error = np.sqrt(float((rest**2).sum()) / (len(requests) - 2) / variance)
    return _Line(float(requests.mean()), float(time_ns.mean()), slope, float(error))


def _rows_at_ridge(signals: Signals) -> float:
    """Rows for which 16-bit arithmetic takes as long as reading 16-bit weights."""
    facts = signals.device_facts
    peaks = facts.peaks if facts is not None else None
    rate = peaks.flop_per_s("bf16") if peaks is not None else None
    if peaks is None or rate is None or peaks.memory_bandwidth_bytes_per_s is None:
        return 1.0
    return rate / peaks.memory_bandwidth_bytes_per_s


_ADVICE = ("less-checkpointing", "selective-checkpointing")


class Recompute(Rule):
    """The backward pass recomputes activations while device memory is free."""

    id = "recompute"
    title = "Keep activations instead of recomputing them"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.ORIGINS)
    needs_on_cpu = (Need.WORK, Need.XLA_OPERATIONS)
    is_preview = False

    minimum_share = Limit(
        0.04, "share", "Half of a smaller share is no more than the variation between steps."
    )
    maximum_memory = Limit(
        0.6,
        "share",
        "If it is unknown what the activations need: with less than 40 percent of the memory "
        "free, few of them would fit.",
    )
    maximum_blocks = 4
    """If not even every fourth block fits, little is gained for a tight memory."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        recomputed, memory = recomputation(signals), signals.memory
        if signals.device.is_host_only:
            yield from self._on_the_cpu(signals, recomputed)
            return
        peak = None if memory is None else memory.peak_allocated_bytes or memory.peak_reserved_bytes
        if memory is None or peak is None or not memory.capacity_bytes:
            yield from self._without_memory(signals, recomputed)
            return
        if not len(recomputed.rows):
            return
        # Memory that is reserved but not allocated is available for activations.
        room = ROOM_SHARE * memory.capacity_bytes - peak
        needed = recomputed_bytes(signals)
        if needed:
            blocks = max(ceil(needed / room), 1) if room > 0 else self.maximum_blocks + 1
            if blocks > self.maximum_blocks:
                return
            saving = _saving_of_blocks(signals, recomputed, int(blocks), min(room / needed, 1.0))
            advice = f" Keeping all of them takes {format_bytes(needed)}{_HOW_MANY[int(blocks)]}."
        else:
            if peak > self.maximum_memory * memory.capacity_bytes:
                return
            half_ns = signals.trace.events.duration_ns[recomputed.rows] // 2
            saving = faster_device_work(signals, recomputed.rows, half_ns, basis="heuristic")
            advice = ""
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        evidence = _evidence(signals, recomputed, saving.claims)
        saving = at_best_also(signals, saving, *partial_recomputation(signals))
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into recomputing activations, although"
                f" {format_bytes(memory.capacity_bytes - peak)} of device memory"
                f" ({format_share(1 - peak / memory.capacity_bytes)}) is never used.{advice}"
            ),
            saving=saving,
            evidence=evidence,
            remedies=advise(*_ADVICE),
        )

    def _on_the_cpu(self, signals: Signals, recomputed: Recomputation) -> Iterable[Finding]:
        """Keep everything: a host has room for it."""
        now_ns = signals.trace.events.duration_ns[recomputed.rows]
        saving = faster_device_work(
            signals,
            recomputed.rows,
            now_ns // 10,
            basis="modeled",
            least_then_ns=np.zeros_like(now_ns),
            most_then_ns=now_ns // 2,
        )
        if self.is_minor(saving.expected_ns, signals):
            return
        yield Finding(
            summary=(
                f"{per_step(saving.claimed_ns, signals)} goes into recomputing activations, which"
                " the host's memory could hold."
            ),
            saving=saving,
            evidence=_evidence(signals, recomputed, saving.claims),
            remedies=advise("less-checkpointing"),
        )

    def _without_memory(self, signals: Signals, recomputed: Recomputation) -> Iterable[Finding]:
        """Say what recomputation costs if the profile does not show how full the memory is."""
        if self.is_minor(recomputed.launched_ns, signals):
            return
        occupied, capacity = most_occupied_bytes(signals), signals.device_facts
        room = ROOM_SHARE * ((capacity and capacity.memory_bytes) or 0)
        if occupied is not None and occupied <= room:
            saving = _saving_of_blocks(signals, recomputed, 1, 1.0)
            memory = (
                f"Memory for {format_bytes(round(room))} is enough to keep them: all that a step"
            )
            memory += f" reads and writes is {format_bytes(occupied)}."
        else:
            # Half of what is expected where memory is free: that is as likely as not.
            then_ns = signals.trace.events.duration_ns[recomputed.rows] * 3 // 4
            saving = faster_device_work(signals, recomputed.rows, then_ns, basis="heuristic")
            memory = "Whether there is memory to keep them was not recorded, so a quarter of it is"
            memory += " expected to go."
        evidence = _evidence(signals, recomputed, saving.claims)
        saving = at_best_also(signals, saving, *partial_recomputation(signals))
        yield Finding(
            summary=(
                f"Device work of {per_step(recomputed.launched_ns, signals)} recomputes activations"
                f" in the backward pass. {memory}"
            ),
            saving=saving if saving.expected_ns else None,
            severity=None if saving.expected_ns else "low",
            evidence=evidence,
            remedies=advise("measure-peak-memory", *_ADVICE),
        )


_HOW_MANY: Final = {
    1: ", which fits: checkpoint none",
    2: ". About half of that fits: checkpoint only every second block",
    3: ". A third of that fits: keep the activations of every third block",
    4: ". A quarter of that fits: keep the activations of every fourth block",
}
"""What fits, by the number of blocks of which one need not be checkpointed."""


def _saving_of_blocks(
    signals: Signals, recomputed: Recomputation, blocks: int, fitting: float
) -> Saving:
    """The saving if one in several blocks keeps its activations."""
    now_ns = signals.trace.events.duration_ns[recomputed.rows]
    return faster_device_work(
        signals,
        recomputed.rows,
        now_ns - now_ns // blocks,
        basis="modeled",
        least_then_ns=(now_ns * (1 - fitting)).astype(np.int64),
        most_then_ns=now_ns - now_ns // (2 * blocks),
    )


def _evidence(signals: Signals, recomputed: Recomputation, time: Intervals) -> tuple[Table, Events]:
    return costly_work("recomputed kernels", signals, recomputed.rows, time, recomputed.operators)
