"""What a finding about the whole run claims of the recorded steps."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.trace.intervals import Intervals, clip, union


def equal_part(signals: Signals, share: float) -> Intervals:
    """A part of each step, since nothing tells in which steps the work is done."""
    window = signals.attribution
    edges = np.append(signals.steps.start_ns, window.window_end_ns).astype(np.int64)
    if len(edges) < 2:
        edges = np.array([window.window_start_ns, window.window_end_ns], dtype=np.int64)
    ends = edges[:-1] + np.ceil(np.diff(edges) * share).astype(np.int64)
    return clip(union(edges[:-1], ends), window.window_start_ns, window.window_end_ns)
