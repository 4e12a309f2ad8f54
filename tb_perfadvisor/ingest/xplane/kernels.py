"""What the names of GPU kernels say, by row of a plane's kinds of event."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class KernelNames:
    """Shape (n,) each, one entry per name."""

    family: NDArray[np.int64]
    precision: NDArray[np.int64]
    tensor_cores: NDArray[np.int64]
    is_collective: NDArray[np.bool_]
    collective: list[str]


_COLLECTIVE = re.compile(r"(?i)nccl|rccl")


def judge_names(names: list[str]) -> KernelNames:
    """Classify kernels by name."""
    count = len(names)
    return KernelNames(
        family=np.zeros(count, dtype=np.int64),
        precision=np.zeros(count, dtype=np.int64),
        tensor_cores=np.full(count, -1, dtype=np.int64),
        is_collective=np.array([bool(_COLLECTIVE.search(name)) for name in names]),
        collective=["unknown"] * count,
    )
