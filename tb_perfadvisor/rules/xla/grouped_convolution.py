"""Convolutions whose channels are split into groups."""

from __future__ import annotations

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.costly_operations import CostlyOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.tpu.grouped_convolutions import grouped_convolutions, grouping_of
from tb_perfadvisor.signals.tpu.memory_time import needed_ns
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation


class GroupedConvolution(CostlyOperations):
    """Grouped convolutions take longer than a convolution of all channels with all channels.

    What it finds
    -------------
    Convolutions whose channels are split into groups of several channels, and the copies that
    rearrange the channels for them. In fusions, they are recognized by the convolution inside.
    Depthwise convolutions, with one channel per group, do not count: XLA computes them well.

    Why it matters
    --------------
    The matrix unit multiplies 128 or 256 channels by as many at a time. A group of fewer channels
    fills only a part of it, and XLA rearranges the channels before and after. One group often takes
    less time, although it multiplies more.

    How it is measured
    ------------------
    High assumes that a convolution with one group reaches the achievable FLOP/s for its own,
    larger FLOP count, or the bandwidth of the memory, without copies. Expected assumes that it
    takes twice as long as that, and that at least a quarter of the time remains. Low is 0.

    When to ignore
    --------------
    When the weights cannot change, as in a pretrained model.

    How to verify
    -------------
    The convolutions have no `feature_group_count`, and take less time.

    References:
    ----------
    OpenXLA, "Operation semantics", on Conv and feature_group_count; Xie et al., "Aggregated
    residual transformations for deep neural networks" (CVPR 2017).
    """

    id = "grouped-convolution"
    title = "Replace grouped convolutions with regular ones"

    minimum_share = Limit(
        0.03, "share", "A single grouped convolution after the input takes a few percent of a step."
    )

    activity = "goes into grouped convolutions and their copies"
    noun = "operation"
    remaining_share = 0.25
    expected_of_best = 2.0
    changes = ("one-group", "depthwise-convolution")

    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation is a convolution with groups of several channels."""
        grouping = grouping_of(operation.product) if operation.product is not None else None
        return grouping is not None and grouping.channels > 1

    def selected(self, signals: Signals) -> list[XlaOperation]:
        """The convolutions that take longer than with one group, and the copies for them."""
        columns = (column.tolist() for column in (signals.hlo.op, signals.hlo.total_ns))
        total_ns = dict(zip(*columns, strict=True))
        count = dict(zip(signals.hlo.op.tolist(), signals.hlo.count.tolist(), strict=True))
        operations: dict[int, XlaOperation] = {}
        for found in grouped_convolutions(signals):
            parts = (found.operation, *found.copies)
            best_ns = self.best_ns(signals, found.operation) or 0.0
            if sum(total_ns[o.op] for o in parts) > best_ns * count[found.operation.op]:
                operations |= {o.op: o for o in parts}
        return list(operations.values())

    def best_ns(
        self, signals: Signals, operation: XlaOperation, *, at_peak: bool = False
    ) -> float | None:
        """The time of a convolution with one group; None if unknown, and for copies."""
        grouping = grouping_of(operation.product) if operation.product is not None else None
        if grouping is None:
            return None
        compute_ns = flop_time_ns(signals, grouping.whole_flop, at_peak=at_peak)
        if compute_ns is None:
            return None
        return max(compute_ns, needed_ns(signals, operation, at_peak=at_peak))
