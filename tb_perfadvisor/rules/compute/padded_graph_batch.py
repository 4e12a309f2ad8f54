"""Decode steps run in graphs that were recorded for larger batches."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Cell, Column, Finding, Saving, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.serving.decode import captured_sizes
from tb_perfadvisor.signals.serving.server_steps import Mask, ServerSteps, server_steps
from tb_perfadvisor.trace.integer_groups import group_rows
from tb_perfadvisor.trace.intervals import Intervals, clip, intersect, total_ns, union
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import format_share

_REMOVED_SHARE = 0.5
"""Part of the padding's time that finer sizes save: some padding remains, and kernels get faster in
steps of whole tiles."""


class PaddedGraphBatch(Rule):
    """Decode steps are padded to the size of a GPU graph that was recorded for a larger batch.

    What it finds
    -------------
    Decode steps of an inference server that replay a graph of a much larger batch than theirs, if
    graphs of larger batches take longer in this profile.

    Why it matters
    --------------
    A server records graphs for some batch sizes, and runs each batch in the next larger one. The
    device computes the missing requests as well.

    How it is measured
    ------------------
    The size of a graph is the largest batch that ran in it, unless the server states it. Graphs are
    told apart by their kernels' names and numbers of blocks. How much longer a graph takes for each
    further request is the slope of a line through the device times of graphs of different sizes.
    High is that time for all missing requests. Expected is half of it, because some padding
    remains. Low is 0: a step that reads weights most of the time takes as long for fewer requests.

    When to ignore
    --------------
    When memory is short: each graph takes some.

    How to verify
    -------------
    The table shows smaller graphs for the same batches, and the device takes less time for them.

    References:
    ----------
    vLLM documentation, "CUDA Graphs", capture sizes; TensorRT-LLM documentation, "CudaGraphConfig",
    enable_padding.
    """

    id = "padded-graph-batch"
    title = "Record graphs for the batch sizes that occur"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS)

    minimum_share = Limit(0.02, "share", "Less is not worth the memory of more graphs.")
    minimum_padding = Limit(
        0.15, "share", "Servers record sizes in steps of 8 or 16, so that some padding is normal."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when padding to a graph's size takes time."""
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
            remedies=advise("graph-sizes", "server-graph-sizes"),
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
