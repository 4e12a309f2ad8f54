"""A loop on a device, from which tests take something away."""

from __future__ import annotations

from tb_perfadvisor.testing import TraceBuilder, ms, us
from tb_perfadvisor.trace import CopyDirection

PERIOD_NS = ms(10)
KERNELS = 8
BUSY_SHARE = 0.8
"""Eight kernels of 1 ms in each 10 ms."""
LATENCY_NS = us(10)


def loop(
    steps: int = 6,
    *,
    lost: frozenset[tuple[int, int]] = frozenset(),
    shift_ns: int = 0,
    waits: str = "cudaStreamSynchronize",
    launch: str = "cudaLaunchKernel",
    stretched: tuple[int, int, int] | None = None,
) -> TraceBuilder:
    """Steps that launch eight kernels of 1 ms, copy the loss to the host and wait for it.

    Kernel k of a step is launched at 100 + 20k us and runs from 210 + 1000k us on. At 8.21 ms the
    copy of 10 us runs; its call returns at 8.23 ms, and the wait at 8.24 ms.

    Args:
        steps: How many.
        lost: Kernels (step, k) whose events are missing. Their launches are there.
        shift_ns: By how much the device's clock is ahead.
        waits: The name of the wait at the end of each step.
        launch: The name of the launches.
        stretched: A kernel (step, k) and how long it lasts by the file.
    """
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3")
    for step in range(steps):
        at = PERIOD_NS * (step + 1)
        builder.step(step, at, at + PERIOD_NS)
        for k in range(KERNELS):
            key = f"{step}.{k}"
            begun = at + us(100 + 20 * k)
            builder.launch(begun, begun + us(8), name=launch, key=key)
            if (step, k) not in lost:
                start = at + us(210 + 1000 * k) + shift_ns
                last_ns = ms(1)
                if stretched is not None and stretched[:2] == (step, k):
                    last_ns = stretched[2]
                builder.kernel("gemm", start, start + last_ns, launched_by=key)
        called = at + us(300)
        builder.launch(called, at + us(8230), name="cudaMemcpy", key=f"copy {step}")
        start = at + us(8210) + shift_ns
        direction = CopyDirection.DEVICE_TO_HOST
        builder.copy(direction, start, start + us(10), launched_by=f"copy {step}")
        builder.synchronize(at + us(8232), at + us(8240), name=waits)
    return builder
