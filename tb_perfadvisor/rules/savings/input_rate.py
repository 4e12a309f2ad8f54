"""What faster input saves where the steps wait for batches."""

from __future__ import annotations

REALIZED_SHARE = 0.5
"""The part of the ideal gain from overlapping input with the steps that programs realize. The
ResNet-50 samples of PyTorch lose 59 ms of a step to loading and gain 35 ms with four workers, 0.6
of it: the workers take cores and memory bandwidth from the step."""


def saving_of_doubled_input_rate_ns(stall_ns: int, window_ns: int) -> int:
    """What a pipeline saves at least when it makes batches twice as fast.

    Twice as many workers do that, or half the work in them. Steps that take as long as a batch
    takes to arrive then take half as long, or as long as they take without the stall;
    `REALIZED_SHARE` of the difference counts.

    Args:
        stall_ns: How long the steps wait for input although it is prepared in parallel.
        window_ns: How long the steps take.
    """
    return int(REALIZED_SHARE * min(stall_ns, window_ns // 2))


def bet_on_rate_ns(stall_ns: int, low_ns: int) -> int:
    """What a faster pipeline is expected to save of a stall.

    How much faster it gets is unknown: from twice the rate, of which programs realize a part, to
    one that always keeps up. Of equally plausible rates, the middle is expected.

    Args:
        stall_ns: How long the steps wait for input.
        low_ns: What is saved at least.
    """
    return (min(low_ns, stall_ns) + stall_ns) // 2
