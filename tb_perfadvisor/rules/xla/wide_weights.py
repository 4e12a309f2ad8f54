"""Weights in 16 bits that each step reads for a few rows."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.graph import FasterOperation, in_proportion
from tb_perfadvisor.signals.program.weight_reads import WeightReads, weight_reads
from tb_perfadvisor.units import format_bytes, format_share


class WideWeights(FasterOperations):
    """The step mostly reads weights, in more bits than it needs.

    What it finds
    -------------
    Steps whose time goes into reading 16-bit or 32-bit arguments that are multiplied by few rows,
    as in decoding. Keys and values of attention don't count.

    Why it matters
    --------------
    Such a step is as long as reading the weights takes. In 8 bits, they have half of the bytes.

    How it is measured
    ------------------
    By the time in which the memory reads the bytes that 8-bit weights do not have, at the bandwidth
    that transfers reach. Expected is nine tenths of it, because scales are read and applied, and
    high is a tenth more, because shorter reads begin later. Low is 0: no profile shows whether the
    results can spare the bits. The time is that of the operations that read the weights, in
    proportion.

    When to ignore
    --------------
    When the rounded weights change the results by more than they may, or training changes them.

    How to verify
    -------------
    The products read arrays of 8-bit numbers, and the model is as accurate as before.

    References:
    ----------
    Dettmers et al., "LLM.int8()" (2022); Xiao et al., "SmoothQuant" (2023).
    """

    id = "wide-weights"
    title = "Store the weights in 8 bits"

    minimum_share = Limit(0.1, "share", "A change that costs accuracy has to bring something.")
    minimum_read_share = Limit(
        0.4, "share", "Where reading weights takes less, other work hides a part of it."
    )
    most_rows = Limit(
        64, "count", "From about a hundred rows on, the matrix unit takes longer than the memory."
    )

    noun = "operation that reads weights"
    changes = ("eight-bit-weights",)
    reads_less = True

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The operations that read wide weights, if that takes most of the step."""
        reads = self._reads(signals)
        if reads is None or reads.read_ns < self.minimum_read_share * signals.attribution.window_ns:
            return ()
        expected, high = (part * reads.saved_ns for part in (0.9, 1.1))
        return in_proportion(signals, reads.operations, (0.0, expected, high))

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """How much each step reads."""
        reads = self._reads(signals)
        size, read_ns = (reads.size_bytes, reads.read_ns) if reads is not None else (0, 0.0)
        each = format_bytes(round(size / signals.steps.count))
        share = format_share(min(read_ns / signals.attribution.window_ns, 1.0))
        return f"{each} in each step", (
            f"Each step reads {each} of weights in 16 bits or more, which takes {share} of it, for"
            f" at most {round(self.most_rows)} rows. In 8 bits, they have half of the bytes."
        )

    def _reads(self, signals: Signals) -> WeightReads | None:
        return weight_reads(signals, round(self.most_rows))
