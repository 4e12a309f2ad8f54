"""One stage of the input pipeline makes the device wait."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.instance import short_name
from tb_perfadvisor.rules.finding import Cell, Column, Finding, Saving, Table
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.input.host_loading import IN_MEMORY
from tb_perfadvisor.signals.input.input_stages import WORK, InputStages, Stage, input_stages
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.signals.input.waiting_fetches import workers_to_keep_up
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.intervals import intersect, total_ns
from tb_perfadvisor.units import format_share
from tb_perfadvisor.whatif import Remove

_LABELS = {
    Stage.WORKERS: "Waiting for the loader's workers",
    Stage.READING: "Reading",
    Stage.PREPROCESSING: "Preprocessing (the dataset's own code: decoding, transforming)",
    Stage.COLLATE: "Collating samples into batches",
    Stage.TRANSFER: "Pinning and enqueueing the batch",
}
_VERBS = {
    Stage.READING: "Reading files",
    Stage.PREPROCESSING: "Preprocessing (the dataset's own code)",
    Stage.COLLATE: "Collating samples into batches",
    Stage.TRANSFER: "Pinning the batch",
}

_ADVICE = {
    Stage.READING: ("shards", "more-loader-workers", "loader-workers", "load-ahead"),
    Stage.PREPROCESSING: (
        "processor-backend",
        "prepare-once",
        "augment-on-device",
        "more-loader-workers",
        "loader-workers",
        "load-ahead",
    ),
    Stage.COLLATE: ("batched-fetch", "more-loader-workers", "loader-workers", "load-ahead"),
    Stage.TRANSFER: ("pinned-memory", "more-loader-workers", "loader-workers", "load-ahead"),
}
_TFDATA = {
    Stage.READING: ("parallel-reads",),
    Stage.PREPROCESSING: ("prepare-once", "augment-on-device"),
    Stage.COLLATE: ("parallel-batch",),
}


class HostPreprocessing(Rule):
    """One stage of the input pipeline causes most of the wait for input.

    What it finds
    -------------
    The stage that causes most of the time the device waits for input (reading, preprocessing,
    collating, or pinning the batch), and its most expensive calls.

    Why it matters
    --------------
    The fix depends on the stage. Reading needs larger files and more bandwidth. Preprocessing
    needs more cores or a device, or can be done once before training. Collating needs one call in
    place of many.

    How it is measured
    ------------------
    The time attributed to *input*, split by the innermost Python frame that identifies a stage, on
    the thread that runs the steps; with tf.data, by the iterator that the step waits for. High is
    all of its idle time. Prepared samples still have to be read and stacked: expected leaves 15 %
    of the stage, as measured for samples in memory. Where the profile allows it, a replay of the
    steps without the stage refines it. Low is half, and at most what could overlap the rest of the
    step. Waiting for a loader's workers is not a stage: the profile of this process does not show
    what they do.

    When to ignore
    --------------
    When the Python tracer itself takes the time: it costs about a microsecond per call, so that
    code with many small calls looks slower than it is.

    How to verify
    -------------
    Time the dataset alone, without a model: a hundred batches take less time.

    References:
    ----------
    TensorFlow guide, "Analyze tf.data performance with the TF Profiler"; PyTorch documentation,
    "torch.utils.data".
    """

    id = "host-preprocessing"
    title = "Take work out of the input pipeline"
    category = "input"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.INPUT_STAGES)
    is_preview = False

    minimum_share = Limit(0.05, "share", "The same limit as that of input-stall.")
    dominating_share = Limit(
        0.5,
        "share",
        "If no stage causes half of the wait, no single fix is the place to start.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when one stage dominates the wait for input."""
        stages, window = input_stages(signals), signals.attribution
        stall = window.intervals[Cause.INPUT]
        idle = {stage: intersect(stall, stages.intervals[stage]) for stage in Stage}
        worst = max(WORK, key=lambda stage: total_ns(idle[stage]))
        claims = idle[worst]
        idle_ns, stall_ns = total_ns(claims), total_ns(stall)
        if self.is_minor(idle_ns, signals):
            return
        if idle_ns < self.dominating_share * stall_ns:
            return
        calls = _calls(signals.trace, stages, worst)
        least, share, _ = IN_MEMORY
        waiting = "the step's operators" if signals.device.is_host_only else "the device"
        yield Finding(
            instance=short_name(f"{calls.rows[0][0]}") if calls.rows else "",
            summary=(
                f"{_VERBS[worst]} makes {waiting} wait {per_step(idle_ns, signals)}:"
                f" {format_share(idle_ns / stall_ns)} of the wait for input."
            ),
            saving=Saving(
                min(round(least * idle_ns), window.window_ns - stall_ns),
                round(share * idle_ns),
                idle_ns,
                claims,
                "measured",
                (Remove(stages.intervals[worst]),),
                realized_share=share,
            ),
            evidence=(
                Table(
                    "Wait for input by stage",
                    (Column("stage", "Stage"), Column("idle_ns", "Device idle", "ns")),
                    (
                        *(
                            (_LABELS[stage], total_ns(idle[stage]))
                            for stage in Stage
                            if len(idle[stage])
                        ),
                        ("(not recorded)", stall_ns - sum(map(total_ns, idle.values()))),
                    ),
                ),
                calls,
            ),
            remedies=advise(*_TFDATA[worst])
            if len(tfdata(signals))
            else advise(*_ADVICE[worst], workers=workers_to_keep_up(signals)),
        )


def _calls(trace: Trace, stages: InputStages, stage: Stage) -> Table:
    """The calls of a stage by name, with their self time."""
    rows, self_ns = stages.rows_of(stage)
    names = trace.events.name[rows]
    unique, first, inverse, count = np.unique(
        names, return_index=True, return_inverse=True, return_counts=True
    )
    self_total = np.bincount(inverse, weights=self_ns, minlength=len(unique)).astype(np.int64)
    merged: dict[str, list[int]] = {}
    for place in np.argsort(-self_total, kind="stable").tolist():
        name = _short(trace.strings[unique[place]])
        total = merged.setdefault(name, [0, 0, int(rows[first[place]])])
        total[0] += int(count[place])
        total[1] += int(self_total[place])
    ranked = sorted(merged.items(), key=lambda item: -item[1][1])
    return Table(
        "Calls of this stage in the whole profile",
        (
            Column("name", "Call"),
            Column("caller", "Called in"),
            Column("count", "Count", "count"),
            Column("own_ns", "Self time", "ns"),
        ),
        tuple(_call(trace, name, *total) for name, total in ranked),
    )


def _call(trace: Trace, name: str, count: int, self_ns: int, row: int) -> tuple[Cell, ...]:
    parent = int(trace.events.parent[row])
    caller = trace.name(parent) if parent >= 0 else None
    return (name, caller, count, self_ns)


def _short(name: str) -> str:
    """`decode of ImagingDecoder`, without the address that differs between objects of a type."""
    if not name.startswith("<built-in "):
        return name
    return name.split(" object at 0x")[0].split(" ", 2)[-1].removesuffix(">")
