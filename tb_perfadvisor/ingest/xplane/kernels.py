"""What the names of GPU kernels say, by row of a plane's kinds of event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.ingest.collective_names import collective_operation, is_collective
from tb_perfadvisor.ingest.kernel_names import classify_kernels


@dataclass(frozen=True, slots=True)
class KernelNames:
    """Shape (n,) each, one entry per name."""

    family: NDArray[np.int64]
    precision: NDArray[np.int64]
    tensor_cores: NDArray[np.int64]
    is_collective: NDArray[np.bool_]
    collective: list[str]


def judge_names(names: list[str]) -> KernelNames:
    """Classify kernels by name."""
    classes = classify_kernels(names)
    collective = [is_collective(name) for name in names]
    return KernelNames(
        family=classes.family.astype(np.int64),
        precision=classes.precision.astype(np.int64),
        tensor_cores=classes.tensor_cores.astype(np.int64),
        is_collective=np.array(collective, dtype=bool),
        collective=[
            collective_operation(name) if found else "unknown"
            for name, found in zip(names, collective, strict=True)
        ],
    )
