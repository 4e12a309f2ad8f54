"""Drawn programs on the CPU, with what `perfadvisor run` found in their tensors."""

from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Examined, Facts, Observed, ObservedKind
from tb_perfadvisor.testing import TraceBuilder, ms
from tb_perfadvisor.trace import Trace


def observed(kind: ObservedKind, share: float, amount: float = 1.0) -> Observed:
    """Something that line 12 of `train.py` calls twice per step."""
    return Observed(
        kind, "aten::mm", "train.py", 12, share, "forward", "(2000, 2000) × (2000, 64)", 2, amount
    )


def program(*found: Observed, step_ms: float = 10) -> Trace:
    """Three steps on the CPU, each of them one product."""
    builder = TraceBuilder()
    for number in range(3):
        start, end = ms(number * step_ms), ms((number + 1) * step_ms)
        builder.step(number, start, end)
        builder.operator("aten::mm", start, end, launches=False)
    return replace(builder.build(), facts=Facts(examined=Examined(4, 0.04, 30, observed=found)))
