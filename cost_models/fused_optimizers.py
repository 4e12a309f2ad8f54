"""What the fused form of PyTorch's optimizers saves on the CPU, by number and size of tensors.

    python -m cost_models.fused_optimizers

The shares that it prints are those of `rules/launch/optimizer.py`. It runs for a minute; keep
the machine idle meanwhile.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

_SECONDS = 0.25
_SIZES = ((10, 64), (100, 64), (10, 1 << 12), (100, 1 << 12), (10, 1 << 16), (60, 1 << 16),
          (4, 1 << 20), (10, 1 << 22))  # fmt: skip
"""Tensors, and numbers in each."""
_OPTIMIZERS: tuple[tuple[Any, dict[str, float]], ...] = (
    (torch.optim.Adam, {}),
    (torch.optim.AdamW, {}),
    (torch.optim.Adagrad, {}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.SGD, {}),
)


def _step_us(kind: Any, options: dict[str, float], count: int, size: int, **form: bool) -> float:
    parameters = [torch.nn.Parameter(torch.randn(size)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.randn(size)
    optimizer = kind(parameters, lr=1e-3, **options, **form)
    for _ in range(3):
        optimizer.step()
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e6


def main() -> None:
    """Print the time of both forms, and the share that the fused one saves."""
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    for kind, options in _OPTIMIZERS:
        for count, size in _SIZES:
            loop_us = _step_us(kind, options, count, size, foreach=False)
            fused_us = _step_us(kind, options, count, size, fused=True)
            print(
                f"{kind.__name__} {options or ''} {count} x {size}: {loop_us:.0f} us, "
                f"fused {fused_us:.0f} us, saves {1 - fused_us / loop_us:.0%}"
            )


if __name__ == "__main__":
    main()
