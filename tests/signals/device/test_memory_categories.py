"""What memory holds in training, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.operators import MemoryCategory
from tb_perfadvisor.signals.device.memory_use import (
    batch_room,
    categories_at,
    memory_categories,
    peak_by_step,
    phase_starts,
)
from tb_perfadvisor.testing import TraceBuilder, ms, run_of

GIB = 1 << 30
Changes = tuple[tuple[float, int, int], ...]
# At, GiB, address: two activations, a temporary of the forward pass, a temporary and two gradients
# of the backward pass.
STEP: Changes = (
    (0.5, 4, 1),
    (1.0, 1, 2),
    (1.5, -1, 2),
    (2.0, 2, 3),
    (4.5, 3, 4),
    (5.0, 1, 5),
    (5.5, -3, 4),
    (5.6, -2, 3),
    (6.0, 2, 6),
    (6.5, -4, 1),
)
FREED: Changes = ((9.5, -1, 5), (9.6, -2, 6))


def training(
    changes: Changes = STEP + FREED, *, steps: int = 2, before: int = 9, reserved: int = 20
) -> Signals:
    """Steps of 10 ms: forward until 4 ms, backward until 8 ms, and the optimizer.

    Of `before` GiB from before the recording, 3 are parameters with gradients of that size.
    """
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB)
    allocated = before
    for number in range(steps):
        at = 10 * number
        builder.step(number, ms(at), ms(at + 10))
        builder.operator("aten::linear", ms(at + 0.1), ms(at + 4), key=f"forward {number}")
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        builder.operator(node, ms(at + 4), ms(at + 8), key=f"backward {number}")
        builder.annotation("Optimizer.step#AdamW.step", ms(at + 8), ms(at + 9))
        builder.kernel("gemm", ms(at + 1), ms(at + 4), launched_by=f"forward {number}")
        builder.kernel("gemm", ms(at + 4.5), ms(at + 9), launched_by=f"backward {number}")
        for offset, change, address in changes:
            allocated += change
            builder.memory(
                ms(at + offset),
                change * GIB,
                allocated_bytes=allocated * GIB,
                reserved_bytes=reserved * GIB,
                address=100 * number + address,
                thread="main",
            )
    return Signals(run_of(builder.build()))


def test_the_life_of_an_allocation_tells_what_it_is_for() -> None:
    found = memory_categories(training())
    assert found is not None
    # After 5.0 ms: 9 from before, activations of 4 and 2, a temporary of 3, a gradient of 1.
    assert found.at_peak == {
        MemoryCategory.PARAMETERS: 3 * GIB,
        MemoryCategory.EARLIER: 6 * GIB,
        MemoryCategory.ACTIVATIONS: 6 * GIB,
        MemoryCategory.TEMPORARY: 3 * GIB,
        MemoryCategory.GRADIENTS: 1 * GIB,
    }
    assert sum(found.at_peak.values()) == 19 * GIB
    assert (found.with_batch_bytes, found.fixed_bytes) == (9 * GIB, 10 * GIB)


def test_categories_over_time_add_up_to_what_is_allocated() -> None:
    held = categories_at(training(), np.array([ms(4), ms(8), ms(10), ms(14)]))
    # 3 of the 9 GiB from before are parameters. Activations of 4 and 2 live until the backward
    # pass, gradients of 1 and 2 until the optimizer, and temporary memory in the passes only.
    assert {category: (size // GIB).tolist() for category, size in held.items()} == {
        MemoryCategory.PARAMETERS: [3, 3, 3, 3],
        MemoryCategory.EARLIER: [6, 6, 6, 6],
        MemoryCategory.ACTIVATIONS: [6, 0, 0, 6],
        MemoryCategory.GRADIENTS: [0, 3, 0, 0],
    }


def test_the_passes_of_each_step() -> None:
    names = ("forward", "backward", "optimizer")
    starts = [(ns // ms(1), phase.value) for ns, phase in phase_starts(training())]
    assert starts == list(zip((0, 4, 8, 10, 14, 18), names * 2, strict=True))


def test_gradients_that_are_kept_are_from_before_the_recording() -> None:
    kept = tuple(change for change in STEP if change[2] not in (5, 6))
    found = memory_categories(training(kept, before=12))
    assert found is not None
    assert found.at_peak == {
        MemoryCategory.EARLIER: 12 * GIB,
        MemoryCategory.ACTIVATIONS: 6 * GIB,
        MemoryCategory.TEMPORARY: 3 * GIB,
    }


def test_state_that_the_optimizer_allocates() -> None:
    found = memory_categories(training((*STEP, (8.5, 8, 7), *FREED), steps=1))
    assert found is not None
    assert found.at_peak[MemoryCategory.OPTIMIZER_STATE] == 8 * GIB
    assert found.at_peak[MemoryCategory.GRADIENTS] == 3 * GIB


def test_a_batch_that_fits_is_a_range() -> None:
    room = batch_room(training())
    assert room is not None
    # 90 % of 80 GiB, less 10 that do not grow, are 62: for 9 that grow, or for those and the 1 GiB
    # that is reserved beyond the peak.
    assert (room.low, room.high) == (pytest.approx(62 / 10), pytest.approx(62 / 9))


def test_without_activations_no_batch_is_given() -> None:
    without = tuple(change for change in STEP if change[2] not in (1, 3))
    assert batch_room(training((*without, *FREED))) is None


def test_the_peak_of_each_step() -> None:
    peaks = peak_by_step(training())
    assert peaks is not None
    assert peaks.tolist() == [19 * GIB, 19 * GIB]


def test_inference_has_no_categories() -> None:
    builder = TraceBuilder().step(0, 0, ms(10)).operator("aten::linear", 0, ms(4))
    builder.kernel("gemm", 0, ms(5))
    builder.memory(ms(1), GIB, allocated_bytes=GIB, reserved_bytes=GIB, address=1, thread="main")
    signals = Signals(run_of(builder.build()))
    assert memory_categories(signals) is None
    assert batch_room(signals) is None
    assert categories_at(signals, np.array([ms(1)])) == {}
    assert phase_starts(signals) == []
