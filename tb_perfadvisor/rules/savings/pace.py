"""What faster input is worth at the least where batches set the pace of the steps."""

from __future__ import annotations

KEPT_SHARE = 0.5
"""Of what overlapping input with the steps could hide. PyTorch's own ResNet-50 samples lose 59 ms
of a step to loading and gain 35 ms with four workers, 0.6 of it: what makes batches takes cores
and memory bandwidth from the step beside it."""


def twice_as_fast_ns(stall_ns: int, window_ns: int) -> int:
    """What a pipeline saves at the least that makes batches twice as fast.

    By twice the workers, or with half the work in them. While batches set the pace the steps take
    as long as a batch takes to come, so that at twice the pace they take half of their time, or
    what they take without the stall; of the difference `KEPT_SHARE` counts.

    Args:
        stall_ns: How long the steps wait for input, although it is made beside them.
        window_ns: How long they take.
    """
    return int(KEPT_SHARE * min(stall_ns, window_ns // 2))
