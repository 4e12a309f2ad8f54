"""Asks NVIDIA's nvidia-matmul-heuristics how long matrix products take; needs no GPU.

Reads `{"gpu", "precision", "shapes": [[batch, m, n, k], ...]}` from its input and prints a list of
`[kernel_ns, blocks]`, null where nothing is known. It runs in an environment of its own.

The predictor ranks kernels for a product, and estimates the run time of each. The fastest of them
counts. Its run times contain the launch of a kernel, which profiles show apart from the kernel.
"""

from __future__ import annotations

import ctypes
import json
import math
import sys

from nvMatmulHeuristics import (  # type: ignore[import-not-found]
    NvMatmulHeuristicsInterfaceEx,
    NvMatmulHeuristicsMatmulLayout,
    NvMatmulHeuristicsNvidiaGpu,
    NvMatmulHeuristicsSiliconMetric,
    NvMatmulHeuristicsTarget,
)

_KERNELS = 16
_GENERIC = NvMatmulHeuristicsTarget.GENERIC


def main() -> None:
    """Answer the question on standard input."""
    asked = json.load(sys.stdin)
    predictor = NvMatmulHeuristicsInterfaceEx(
        backend=_GENERIC, gpu=NvMatmulHeuristicsNvidiaGpu[asked["gpu"]]
    )
    backend = predictor.createBackend(_GENERIC)
    answers: list[list[int] | None] = []
    for batch, m, n, k in asked["shapes"]:
        layout = NvMatmulHeuristicsMatmulLayout.NN_ROW_MAJOR
        problem = predictor.makeNvMatmulHeuristicsProblem(m, n, k, layout, batch)
        kernels = predictor.get(problem, _KERNELS, asked["precision"])
        if not kernels:
            answers.append(None)
            continue
        best = min(kernels, key=lambda kernel: kernel["runtime"])
        # The package's own method takes no backend, and crashes.
        launch_s = predictor.nvMatmulHeuristicsEstimateSiliconMetricEx(
            predictor.handle,
            asked["precision"].encode(),
            backend,
            ctypes.byref(problem),
            ctypes.byref(best["nvmmhKernelConfiguration"]),
            int(NvMatmulHeuristicsSiliconMetric.STATIC_LATENCIES_S),
            predictor.hardware_descriptor,
        )
        kernel = best["kernel"]
        tiles = math.ceil(m / kernel.cta_tile_m) * math.ceil(n / kernel.cta_tile_n)
        blocks = batch * tiles * max(kernel.split_k, 1)
        answers.append([round((best["runtime"] - launch_s) * 1e9), blocks])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
