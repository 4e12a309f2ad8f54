"""Drawn programs on the CPU, with what `perfadvisor run` found in their tensors."""

from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Examined, Facts, FailedLook, Observed, ObservedKind
from tb_perfadvisor.testing import TraceBuilder, ms
from tb_perfadvisor.trace import Trace


def observed(kind: ObservedKind, share: float, amount: float = 1.0) -> Observed:
    """Something that line 12 of `train.py` calls twice per step."""
    return Observed(
        kind, "aten::mm", "train.py", 12, share, "forward", "(2000, 2000) × (2000, 64)", 2, amount
    )


def program(
    *found: Observed,
    step_ms: float = 10,
    operator: str = "aten::mm",
    trains: bool = True,
    failed: tuple[FailedLook, ...] = (),
) -> Trace:
    """Three steps on the CPU, each of them one product, and one of its gradient."""
    builder = TraceBuilder()
    for number in range(3):
        start, end = ms(number * step_ms), ms((number + 1) * step_ms)
        middle = (start + end) // 2
        builder.step(number, start, end)
        builder.operator(operator, start, middle, launches=False)
        if trains:
            name = "autograd::engine::evaluate_function: MmBackward0"
            builder.operator(name, middle, end, launches=False)
        builder.operator(operator, middle, end, launches=False)
    examined = Examined(4, 0.04, 30, observed=found, failed=failed)
    return replace(builder.build(), facts=Facts(examined=examined))
