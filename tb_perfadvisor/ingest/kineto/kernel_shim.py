"""Kernel names until the kernel-name tables are there."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_COLLECTIVE = re.compile(
    r"^(?:ncclDevKernel|ncclKernel|rccl|multimem_all_reduce|cross_device_reduce)"
)
_OPERATION = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|Broadcast|SendRecv|Reduce|AllToAll)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class KernelNames:
    """Columns by name."""

    family: NDArray[np.uint8]
    precision: NDArray[np.uint8]
    tensor_cores: NDArray[np.int8]


def classify_kernels(names: list[str]) -> KernelNames:
    """Nothing known."""
    zeros = np.zeros(len(names), dtype=np.uint8)
    return KernelNames(zeros, zeros, np.full(len(names), -1, dtype=np.int8))


def is_collective(name: str) -> bool:
    """Whether a kernel is a collective."""
    return _COLLECTIVE.match(name) is not None


def collective_operation(name: str) -> str:
    """The operation of a collective kernel."""
    found = _OPERATION.search(name)
    return re.sub(r"(?<!^)(?=[A-Z])", "-", found.group(1)).lower() if found else "unknown"


def is_copy(name: str) -> bool:
    """Whether a kernel copies."""
    return name.startswith("__amd_rocclr_copyBuffer")


def is_fill(name: str) -> bool:
    """Whether a kernel fills."""
    return name.startswith("__amd_rocclr_fillBuffer")
