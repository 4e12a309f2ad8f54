"""Decode steps take about as long for more requests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.server_steps import batches_table
from tb_perfadvisor.rules.finding import Finding, LargerBatch, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.serving.server_steps import server_steps
from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.units import format_share

_LEAST_SPREAD = 1.5
"""The largest batch over the smallest one: with less, the slope is noise."""
_STANDARD_ERRORS = 2.0


class SmallDecodeBatch(Rule):
    """Decode steps take hardly longer for more requests, so more of them would be almost free.

    What it finds
    -------------
    Decode steps of an inference server whose time, over batches of different sizes in this profile,
    hardly depends on the number of requests.

    Why it matters
    --------------
    A decode step reads all weights of the model once, whatever the batch. Until the device computes
    longer than it reads, more requests in a step generate more tokens in about the same time.

    How it is measured
    ------------------
    A line through the times of decode steps over their requests; of steps that replay GPU graphs
    and steps that don't, those that occur more often. Its part that does not depend on
    the requests is shared by more of them in a larger batch. The finding proposes twice the mean
    batch and has no saving, because no step gets shorter. Low takes the slope to be two standard
    errors larger, and high takes it to be two smaller.

    When to ignore
    --------------
    When no requests are waiting, when memory has no room for more of the key-value cache, or when
    each token must come as fast as possible.

    How to verify
    -------------
    With more requests per step, the server generates more tokens per second.

    References:
    ----------
    Pope et al., "Efficiently Scaling Transformer Inference" (MLSys 2023), section 2.
    """

    id = "small-decode-batch"
    title = "Decode more requests in each step"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS, Need.PEAKS)

    minimum_steps = Limit(8, "count", "A line through fewer steps says little.")
    minimum_fixed_share = Limit(
        0.5, "share", "If most of the step grows with the requests, more of them make it longer."
    )
    maximum_compute_share = Limit(
        0.5, "share", "Close to the limit of the arithmetic units, more requests take longer."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when decode steps hardly depend on their batch."""
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

        Args:
            errors: By how many standard errors the slope is larger.
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
