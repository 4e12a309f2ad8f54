"""The optimizer's state takes a good part of the memory."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.lower_peak import (
    less_at_peak,
    memory_saving,
    part_of_peak,
    severity_of_memory,
)
from tb_perfadvisor.rules.evidence.snapshots import memory_over_time
from tb_perfadvisor.rules.finding import Column, Finding, Table
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.snapshots.course import memory_course
from tb_perfadvisor.signals.snapshots.held import optimizer_state
from tb_perfadvisor.units import format_bytes

_SHARDS = 8
"""Devices of a usual node."""


class OptimizerStateMemory(Rule):
    """The optimizer's state takes a good part of the memory at the peak.

    What it finds
    -------------
    What the optimizer allocated and kept, or sets of tensors with the sizes of the parameters that
    were there before the history of a program with Adam.

    Why it matters
    --------------
    Adam keeps two averages of each gradient: in 32 bits, twice as much as parameters in 32 bits and
    four times as much as parameters in 16 bits. Nothing but the optimizer's step reads it.

    How it is measured
    ------------------
    The state at the peak. Kept in the host's memory, all of it is freed, which is the claim.
    Sharded over n devices, it is all but one n-th. In 8 bits instead of 32, it is three quarters,
    at the price of rounding. There is no saving in time.

    When to ignore
    --------------
    When the batch fits, and a larger one would not be faster per sample.

    How to verify
    -------------
    Record again after the first step: memory between steps is lower.

    References:
    ----------
    Rajbhandari et al., "ZeRO" (SC 2020); Dettmers et al., "8-bit Optimizers via Block-wise
    Quantization" (ICLR 2022); PyTorch torchao documentation, "CPU offload optimizer".
    """

    id = "optimizer-state-memory"
    title = "Move, shard or shrink the optimizer's state"
    category = "memory"
    reads_sums = True
    needs = (Need.MEMORY_SNAPSHOT,)
    is_preview = False

    minimum_share = Limit(
        0.2, "share", "If other things take more than 80 % of the peak, they are the better start."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding if the optimizer's state takes a good part of the peak."""
        course, found = memory_course(signals), optimizer_state(signals)
        if course is None or found is None:
            return
        saving = memory_saving(course, found.bytes)
        if saving.share < self.minimum_share:
            return
        how = ", by the sizes of what was there before the history" if found.is_inferred else ""
        rows = (
            ("in the host's memory", found.bytes),
            (f"sharded over {_SHARDS} devices", found.bytes * (_SHARDS - 1) // _SHARDS),
            ("in 8 instead of 32 bits", found.bytes * 3 // 4),
            ("in 16 instead of 32 bits", found.bytes // 2),
        )
        yield Finding(
            instance=f"up to {less_at_peak(saving)}",
            summary=(
                f"The optimizer's state holds {part_of_peak(course, found.bytes)}{how}. In the"
                f" host's memory it frees {format_bytes(found.bytes)}; sharded over {_SHARDS}"
                f" devices, {format_bytes(rows[1][1])}; in 8 instead of 32 bits,"
                f" {format_bytes(rows[2][1])}."
            ),
            severity=severity_of_memory(signals, course, saving, has_price=True),
            memory=saving,
            evidence=(
                Table(
                    "What it would free",
                    (Column("where", "Optimizer state"), Column("bytes", "Freed", "bytes")),
                    rows,
                ),
                *memory_over_time(course),
            ),
            remedies=advise(
                "offloaded-optimizer", "sharded-state-if-several", "eight-bit-optimizer"
            ),
        )
