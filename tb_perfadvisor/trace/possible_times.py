"""Recognizes times that no recording has, so that sums of all others fit into 64 bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace.tables import Int64

FARTHEST_NS = 2**51
"""26 days. No recording is longer, and times from its start stay below 2^53, which JavaScript and
floats represent exactly."""
LONGEST_NS = 2**52
MOST_TOGETHER_NS = 2**62
"""146 years: events of all threads and levels, for hours, add up to less. Sums of any events fit
into 64 bits then."""


def is_impossible(start_ns: Int64, duration_ns: Int64) -> NDArray[np.bool_]:
    """A mask of the events that begin too far from most others, or last too long; shape (n,).

    Starts come in any order; durations are not negative.
    """
    impossible = np.zeros(start_ns.size, dtype=np.bool_)
    if not start_ns.size:
        return impossible
    if int(start_ns.max()) - int(start_ns.min()) > FARTHEST_NS:
        middle = int(np.partition(start_ns, start_ns.size // 2)[start_ns.size // 2])
        limits = np.iinfo(np.int64)
        impossible |= start_ns < max(middle - FARTHEST_NS, limits.min)
        impossible |= start_ns > min(middle + FARTHEST_NS, limits.max)
    longest_ns = int(duration_ns.max())
    if longest_ns > LONGEST_NS or longest_ns * start_ns.size > MOST_TOGETHER_NS:
        limit_ns = LONGEST_NS
        if float(duration_ns[duration_ns <= limit_ns].sum(dtype=np.float64)) > MOST_TOGETHER_NS:
            limit_ns = MOST_TOGETHER_NS // start_ns.size
        impossible |= duration_ns > limit_ns
    return impossible
