"""What hardware counters say of single kernels: only samples that they fill count."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import overlap_ns, union
from tb_perfadvisor.trace.tables import Int32

_OF_PEAK = ".pct_of_peak_sustained"
_LABELS = (
    (re.compile("sm__warps_active"), "Achieved occupancy"),
    (re.compile("dram__(?:throughput|bytes|read|write)"), "Memory bandwidth"),
    (re.compile("sm__(?:inst_executed_)?pipe_tensor"), "Tensor cores"),
    (re.compile("sm__throughput"), "Multiprocessors"),
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
    busy = union(trace.events.start_ns[rows], trace.events.end_ns[rows])
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
